"""Signs of life are read from connections: regressions that the simulation found."""

from holdfast.controller import Controller, Limits
from holdfast.events import AnyEvent, NodeLost
from holdfast.messages import PROTOCOL, Hello
from holdfast.shell.nodes import NodeLives


class Line:
    """A connection over which nothing is sent."""

    heard_at = 0.0

    def send(self, _message: object) -> None:
        pass

    def ask(self) -> None:
        pass

    def tcp_state(self) -> None:
        return None

    def overdue(self, _now: float) -> str:
        return ""

    def close(self, _why: str) -> None:
        pass

    def abort(self, _why: str) -> None:
        pass


def test_what_was_heard_just_before_a_connection_broke_counts() -> None:
    """Nobody looked meanwhile: the process had something else to do."""
    now, told = 0.0, list[AnyEvent]()
    state = Controller(Limits(node_count=1)).state
    nodes = NodeLives(
        state, 5.0, 1, lambda: now, lambda events, _: told.extend(events), lambda _: None
    )
    line = Line()
    nodes.hello(line, Hello(protocol=PROTOCOL, node="a", name="a", address="h", workers=1, pid=1,
                            attempt=0, running=False))  # fmt: skip
    now = line.heard_at = 4.0
    nodes.closed("a", line)
    now = 8.9
    nodes.look(now)
    assert not [event for event in told if isinstance(event, NodeLost)]
    now = 9.0
    nodes.look(now)
    assert [event.ago_s for event in told if isinstance(event, NodeLost)] == [5.0]
