"""A journal told in lines that a person can follow: when, what was heard, what was ordered.

Facts that were only noted (progress, nodes that come and go without a consequence) are left out,
because a day has hundreds of them and a story a few dozen.
"""

from collections.abc import Iterator

import msgspec

from holdfast.actions import AnyAction, Entry
from holdfast.events import AnyEvent, Diagnosed, MilestoneReached, NodeLost, WorkerExited

_decoder = msgspec.json.Decoder(Entry)


def story(lines: bytes) -> Iterator[str]:
    """The journal's entries that decided something, one line each; times since the first entry."""
    first: float | None = None
    for line in lines.splitlines()[1:]:
        try:
            entry = _decoder.decode(line)
        except msgspec.MsgspecError:
            return  # a torn last line
        first = entry.at if first is None else first
        if entry.actions or isinstance(entry.event, NodeLost | Diagnosed):
            orders = "; ".join(_order(action) for action in entry.actions)
            yield f"{entry.at - first:12.3f}  {_fact(entry.event):60s}  {orders}".rstrip()


def _fact(event: AnyEvent) -> str:
    kind = type(event).__name__
    match event:
        case NodeLost():
            return f"{kind} {event.node}: {event.detail}"
        case WorkerExited():
            how = f"signal {event.signal}" if event.signal else f"status {event.exit_code}"
            return f"{kind} {event.node} rank {event.rank}, attempt {event.attempt}: {how}"
        case Diagnosed():
            return f"{kind} {event.cause}, attempt {event.attempt}"
        case MilestoneReached():
            return f"{kind} {event.milestone.value}, attempt {event.attempt}"
        case _:
            who = getattr(event, "node", None) or getattr(event, "attempt", None)
            return f"{kind} {who}" if who is not None else kind


def _order(action: AnyAction) -> str:
    fields = ("node", "attempt", "count", "outcome")
    found = (getattr(action, field, None) for field in fields)
    what = " ".join(str(value) for value in found if value is not None)
    return f"{type(action).__name__} {what}"
