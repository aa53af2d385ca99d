"""Who entered another collective than its peers, by the last words of those that have some."""

import signal
from collections.abc import Sequence

import msgspec

from holdfast.collectives import Collective, GroupLog
from holdfast.diagnosis import Kinds, weigh
from holdfast.diagnosis.mismatch import clue_in, last_entered
from holdfast.events import WorkerExited
from tests.diagnosis.test_verdict import CLUE, exited, recorded

STEP = ["all_reduce float[100]", "all_reduce float[7]"]
ABORTED = exited(1, number=signal.SIGABRT, clue=CLUE, ago_s=1.0)


def cut_off(rank: int, kinds: Sequence[str], number: int = 40) -> WorkerExited:
    """It has lost the connection to a peer that was aborted, in the last of these."""
    lost = recorded("all_reduce_peer_killed")
    lost = msgspec.structs.replace(lost, entered=last_entered([log(kinds, number)]))
    return exited(rank, error=lost)


def log(kinds: Sequence[str], number: int = 40) -> GroupLog:
    first = number - len(kinds) + 1
    recent = tuple(Collective(n, kind=kind) for n, kind in enumerate(kinds, start=first))
    return GroupLog(name="0", description="default_pg", recent=recent)


def test_of_two_ranks_the_survivor_that_left_its_own_period_is_wrong_and_not_the_aborted() -> None:
    verdict = weigh([ABORTED, cut_off(0, [*STEP * 4, "all_reduce float[65536]"])])
    assert (verdict.cause, verdict.rank) == ("collective-mismatch", 0)
    assert verdict.summary == (
        "Rank 0 entered a collective that does not match: it entered all_reduce float[65536] "
        "(number 40 of group default_pg) where all_reduce float[100] was expected; rank 1 failed "
        f"because of it: {CLUE}"
    )


def test_what_a_rank_had_entered_that_was_stopped_before_it_failed_counts_as_well() -> None:
    entered = {0: last_entered([log([*STEP * 4, "barrier"])])}
    verdict = weigh([ABORTED], entered=entered)
    assert (verdict.rank, verdict.chosen, verdict.also_failed) == (0, None, 1)


def test_where_the_survivor_did_as_ever_the_aborted_one_is_wrong() -> None:
    verdict = weigh([ABORTED, cut_off(0, [*STEP * 4, STEP[0]])])
    assert (verdict.cause, verdict.rank, verdict.confidence) == ("collective-mismatch", 1, 0.6)
    assert "no evidence against its peers; it failed because of it" in verdict.summary


def test_the_majority_of_the_survivors_is_right_though_all_of_them_left_their_period() -> None:
    """At the end of an epoch, say."""
    ranks = [cut_off(rank, [*STEP * 4, "all_reduce float[1]"]) for rank in (0, 3)]
    odd = cut_off(2, [*STEP * 4, "all_reduce float[9]"])
    verdict = weigh([ABORTED, *ranks, odd])
    assert verdict.rank == 2
    assert "entered all_reduce float[9] (number 40 of group default_pg) where others " in (
        verdict.summary
    )
    assert weigh([ABORTED, *ranks]).rank == 1


def test_without_a_clue_the_last_collectives_blame_nobody() -> None:
    killed = exited(1, number=signal.SIGKILL, ago_s=1.0)
    verdict = weigh([killed, cut_off(0, [*STEP * 4, "barrier"])])
    assert (verdict.cause, verdict.rank) == ("worker-killed", 1)


def test_of_thousands_that_are_told_together_the_one_that_left_its_period_stays_apart() -> None:
    kinds = Kinds()
    usual = [kinds.of(cut_off(rank, [*STEP * 4, STEP[0]])) for rank in range(5)]
    odd = kinds.of(cut_off(7, [*STEP * 4, "all_reduce float[9]"]))
    assert len(set(usual)) == 1 and odd not in usual


def test_the_clue_is_the_last_line_that_is_known() -> None:
    output = f"step 3\nterminate called after throwing 'gloo::EnforceNotMet'\n  {CLUE}\n"
    assert clue_in(output) == CLUE
    assert clue_in("terminate called after throwing 'std::bad_alloc'\n") == ""
