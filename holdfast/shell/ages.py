"""Ages of a fact that has waited.

An age is as of the moment at which the fact was handed over. While the disk is full, or copies of
the journal are under way, facts wait for minutes before they are decided, and what they tell of has
become as much older.
"""

import msgspec

from holdfast.events import AnyEvent, Broken, Progress

AGES = ("ago_s", "last_ago_s")


def aged(event: AnyEvent, by_s: float) -> AnyEvent:
    """The same fact, told so many seconds later."""
    if by_s <= 0:
        return event
    changes: dict[str, object] = {}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if name in AGES:
            changes[name] = value + by_s
        elif isinstance(value, Progress) and value.step is not None:
            changes[name] = msgspec.structs.replace(value, step_ago_s=value.step_ago_s + by_s)
        elif isinstance(value, Broken):
            changes[name] = msgspec.structs.replace(value, ago_s=value.ago_s + by_s)
    return msgspec.structs.replace(event, **changes) if changes else event
