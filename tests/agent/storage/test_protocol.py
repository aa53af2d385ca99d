"""An agent and its storage process: the end of one is no failure of the other."""

import socket

from holdfast.agent.storage import protocol


def test_an_agent_that_ends_with_news_unread_is_gone_and_nothing_else() -> None:
    agent, storage = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with storage:
        protocol.send(storage, protocol.NewestAttempt(attempt=3))
        agent.close()
        assert protocol.receive_order(storage) is None
