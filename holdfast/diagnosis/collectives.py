"""Whom a collective waits for, by what each rank has entered last in each process group.

A group's ranks have to enter the same collectives in the same order. So there are three stories:

- *missing*: some ranks wait in a collective that others have not entered. Of these, those that wait
  in another group wait for somebody themselves; who waits nowhere is the one all of them wait for.
  That names one rank where grouping by stacks alone would name all that stand behind it.
- *mismatch*: two ranks have entered different ones under the same number. The majority is right;
  where there is none, whoever does what it has always done at this point of its period.
- *order*: all wait, in different groups, for each other.

Where everybody has entered the same, no rank is to blame: what lies between them is.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from holdfast.collectives import Collective, GroupLog
from holdfast.counts import count
from holdfast.events import each_of, in_rows
from holdfast.rank_runs import each_in
from holdfast.stacks import in_words

PERIOD_MAX = 16  # collectives of a step, where a period is looked for
GROUPS_SHOWN = 4  # process groups, as evidence
SIDES_SHOWN = 3  # different collectives of one of them
KIND_CHARS = 100


class Story(StrEnum):
    """What is wrong between the ranks."""

    MISSING = "missing"
    MISMATCH = "mismatch"
    ORDER = "order"
    NOBODY = "nobody"  # all have entered the same, and it is not over


class CollectiveFinding(NamedTuple):
    """What the ranks of one group wait for; `ranks` are those to blame, if any."""

    story: Story
    ranks: tuple[int, ...]
    text: str  # one sentence, without a full stop

    @property
    def blames(self) -> bool:
        """Whether it names somebody."""
        return bool(self.ranks)


Group = list[GroupLog]  # all that is known of one process group


def find(logs: Sequence[GroupLog]) -> CollectiveFinding | None:
    """From the newest collectives of all ranks that could be asked; None where nobody waits."""
    groups = _by_group(log for log in logs if log.recent)
    for group in groups:
        if (mismatch := _mismatch(group)) is not None:
            return mismatch
    waiting = {rank for group in groups for rank in _ranks(_pending(group))}
    behind = [(group, late) for group in groups if (late := _behind(group))]
    for group, late in behind:
        if free := [rank for rank in late if rank not in waiting]:
            return _missing(group, free)
    if behind:
        return _crossed(*behind[0])
    return next(filter(None, map(_together, groups)), None)


def _by_group(logs: Iterable[GroupLog]) -> list[Group]:
    found: dict[tuple[object, ...], Group] = {}
    for log in logs:
        found.setdefault((log.name, log.members), []).append(log)
    return list(found.values())


def _ranks(logs: Iterable[GroupLog]) -> list[int]:
    return sorted(rank for log in logs for rank in each_of(log.ranks))


def _pending(group: Group) -> Group:
    return [log for log in group if log.last.pending]


def _behind(group: Group) -> list[int]:
    """Who has not entered what others wait in."""
    newest = max((log.last.sequence for log in _pending(group)), default=0)
    return _ranks(log for log in group if log.last.sequence < newest)


def _awaited(group: Group) -> Collective:
    """The newest that somebody waits in."""
    return max((log.last for log in _pending(group)), key=lambda last: last.sequence)


def _missing(group: Group, ranks: Sequence[int]) -> CollectiveFinding:
    first = _awaited(group)
    waits = _ranks(log for log in group if log.last.sequence >= first.sequence)
    has, wait = "have" if len(ranks) > 1 else "has", "waits" if len(waits) == 1 else "wait"
    text = (
        f"{_named(ranks)} {has} not entered {_what(first, group)}, in which {_named(waits)} {wait}"
    )
    return CollectiveFinding(Story.MISSING, tuple(ranks), text)


def _crossed(group: Group, ranks: Sequence[int]) -> CollectiveFinding:
    """Everybody waits, so each for somebody who waits elsewhere."""
    wait = "wait" if len(ranks) > 1 else "waits"
    what = _what(_awaited(group), group)
    text = (
        f"{_named(ranks)} {wait} in another process group instead of in {what}: the order differs"
    )
    return CollectiveFinding(Story.ORDER, tuple(ranks), text)


def _together(group: Group) -> CollectiveFinding | None:
    """Everybody who could be asked waits in the same one."""
    members = set(each_in(group[0].members))
    if not members or len(_pending(group)) < len(group):
        return None
    what, seen = _what(group[0].last, group), _ranks(group)
    if silent := sorted(members.difference(seen)):
        text = f"{_named(silent)} did not answer; all others wait in {what}"
        return CollectiveFinding(Story.MISSING, tuple(silent), text)
    return CollectiveFinding(Story.NOBODY, (), f"all {len(seen)} ranks have entered {what}")


# ── as evidence ───────────────────────────────────────────────────────────────────────────────


def last_of_groups(logs: Sequence[GroupLog]) -> tuple[str, ...]:
    """What was entered last in each process group and by whom, a line each: the smallest group of
    ranks first. Of many process groups those in which ranks differ, then those that are waited in.
    """
    groups = _by_group(log for log in logs if log.recent)
    groups.sort(key=lambda group: (-len({*map(_entered, group)}), not _pending(group)))
    more = len(groups) - GROUPS_SHOWN
    left = (f"last collectives of {more} more groups are not shown",) if more > 0 else ()
    return (*map(_sides, groups[:GROUPS_SHOWN]), *left)


def _sides(group: Group) -> str:
    same: dict[str, Group] = {}
    for log in group:
        same.setdefault(_entered(log), []).append(log)
    sides = [(what, _ranks(logs)) for what, logs in same.items()]
    if silent := sorted(set(each_in(group[0].members)).difference(_ranks(group))):
        sides.append(("none known", silent))
    sides.sort(key=_few)
    told = [f"{_named(ranks)} {what}" for what, ranks in sides[:SIDES_SHOWN]]
    more = sum(len(ranks) for _, ranks in sides[SIDES_SHOWN:])
    told += [f"{count(more, 'more rank')} at others"] if more else []
    return f"last collective in group {_name(group)}: {'; '.join(told)}"


def _entered(log: GroupLog) -> str:
    last, state = log.last, "not completed" if log.last.pending else "completed"
    return f"number {last.sequence} {last.kind[:KIND_CHARS] or 'of unknown kind'} ({state})"


# ── different collectives under one number ────────────────────────────────────────────────────


def _mismatch(group: Group) -> CollectiveFinding | None:
    kinds = [{c.sequence: c.kind for c in log.recent if c.kind} for log in group]
    shared = sorted(set.intersection(*map(set, kinds))) if len(kinds) > 1 else []
    at = next((n for n in shared if len({known[n] for known in kinds}) > 1), None)
    if at is None:
        return None
    sides: dict[str, Group] = {}
    for log, known in zip(group, kinds, strict=True):
        sides.setdefault(known[at], []).append(log)
    ranks = {kind: _ranks(logs) for kind, logs in sides.items()}
    right = _right(ranks, kinds[0], at)
    wrong = sorted(rank for kind, same in ranks.items() if kind != right for rank in same)
    told = "; ".join(f"{_named(same)} {kind}" for kind, same in sorted(ranks.items(), key=_few))
    text = f"different collectives were entered as {_which(at, group)}: {told}"
    return CollectiveFinding(Story.MISMATCH, tuple(wrong) if right else (), text)


def _few(side: tuple[str, list[int]]) -> tuple[int, list[int]]:
    return len(side[1]), side[1]


def _right(sides: Mapping[str, Sequence[int]], known: Mapping[int, str], at: int) -> str:
    """The kind that belongs there; empty if that cannot be told."""
    most, *others = Counter({kind: len(ranks) for kind, ranks in sides.items()}).most_common()
    if not others or most[1] > others[0][1]:
        return most[0]
    expected = expected_after([kind for number, kind in sorted(known.items()) if number < at])
    return expected if expected in sides else ""


def expected_after(before: Sequence[str]) -> str:
    """What follows, by the shortest period that what came before has, seen twice; else empty."""
    for period in range(1, min(PERIOD_MAX, len(before) // 2) + 1):
        last, one_earlier = before[-period:], before[-2 * period : -period]
        if last == one_earlier:
            return before[-period]
    return ""


def _what(entered: Collective, group: Group) -> str:
    return f"{entered.kind or 'a collective'} ({_which(entered.sequence, group)})"


def _which(sequence: int, group: Group) -> str:
    return f"number {sequence} of group {_name(group)}"


def _name(group: Group) -> str:
    return group[0].description or group[0].name


def _named(ranks: Iterable[int]) -> str:
    known = in_rows(ranks)
    one = len(known) == 1 and known[0][0] == known[0][1]
    return f"rank{'' if one else 's'} {in_words(known)}"
