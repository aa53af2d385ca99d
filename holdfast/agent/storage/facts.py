"""What the controller hears of durable checkpoints. Pure."""

from holdfast.agent.storage.protocol import Committed, SaveFailed
from holdfast.events import CheckpointCommitted, CheckpointFailed


def of(news: Committed | SaveFailed, node: str) -> CheckpointCommitted | CheckpointFailed | None:
    """The fact; None for a failure that is like the last ones: told at the 1st, 2nd, 4th, 8th."""
    tier = news.tier.name.lower()
    if isinstance(news, Committed):
        return CheckpointCommitted(
            node=node,
            tier=tier,
            attempt=news.attempt,
            step=news.step,
            seconds=news.seconds,
            bytes=news.bytes,
            name=news.name,
        )
    if news.failures & (news.failures - 1):
        return None
    return CheckpointFailed(
        node=node,
        tier=tier,
        attempt=news.attempt,
        step=news.step,
        why=news.why,
        failures=news.failures,
    )
