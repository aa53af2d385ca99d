"""Whose an error is: what comes wherever a step is done is not one machine's."""

from collections.abc import Sequence

import pytest

from holdfast.diagnosis import code_or_machine, weigh
from holdfast.diagnosis.code_or_machine import judge
from holdfast.events import Progress, WorkerError, WorkerExited
from holdfast.occurrences import Occurrence, Recurrence

ILLEGAL = WorkerError(
    type="torch.AcceleratorError",
    message="CUDA error: an illegal memory access was encountered",
    file="train.py",
    line=30,
)
SCRIPT = WorkerError(type="ValueError", message="x", file="train.py", line=12)


def came(
    node: str, step: int, rank: int = 1, *, cause: str = "worker-exception", version: int = 1,
    signature: str = "ValueError@train.py:12", also: tuple[str, ...] = (), at: float = 0.0,
) -> Occurrence:  # fmt: skip
    return Occurrence(
        cause=cause, signature=signature, rank=rank, step=step, nodes=(node, *also),
        version=version, at=at,
    )  # fmt: skip


def device(node: str, step: int, rank: int = 1, version: int = 1, at: float = 0.0) -> Occurrence:
    return came(node, step, rank, cause="device-error", version=version, at=at)


def judged(times: Sequence[Occurrence], nodes: int = 8) -> Recurrence | None:
    return judge(times[-1], times[:-1], nodes)


CODE = {
    "at the same step of another node": ([device("b", 9, 1), device("c", 9, 2)], 0.8),
    "the same rank on another node": ([device("b", 9), device("b", 9), device("c", 9)], 0.95),
    "a third time": ([device("b", 9, 1), device("c", 9, 2), device("b", 9, 1)], 0.95),
    "with others between": ([device("b", 9, 1), device("d", 7, 3), device("c", 9, 2)], 0.8),
    "an exception": ([came("b", 9, 1), came("c", 9, 2)], 0.8),
    "on several at once": ([came("b", 9, also=("c",)), came("b", 9, also=("c",))], 0.8),
    "of a rank whose node was left": (
        [came("b", 5), came("b", 6), came("b", 7), came("c", 8)], 0.9
    ),
}  # fmt: skip


@pytest.mark.parametrize(("times", "confidence"), CODE.values(), ids=CODE.keys())
def test_what_comes_wherever_its_step_is_done_is_the_codes(
    times: list[Occurrence], confidence: float
) -> None:
    found = judged(times)
    assert found is not None and (found.whose, found.confidence) == ("code", confidence)
    assert found.certain == (confidence >= 0.9)


@pytest.mark.parametrize(
    ("nodes", "row", "code"),
    [
        (1_000, "bc", True),
        (12_500, "bc", False),  # one fails each quarter of an hour
        (12_500, "bcd", False),
        (12_500, "bcdefg", True),
        (2, "bcb", True),
        (8, "bccc", True),
        (8, "bcccccc", False),  # c is broken, and never gets further
        (1_000, "bcc", False),
        (12_500, "bccc", False),
    ],
)
def test_machines_that_fail_meanwhile_by_chance_are_no_bug(
    nodes: int, row: str, code: bool
) -> None:
    """Each 5 minutes after the one before, as a large job restarts."""
    times = [device(node, 9, ord(node), at=300.0 * n) for n, node in enumerate(row)]
    assert (judged(times, nodes) is not None) == code


def test_a_rank_that_fails_on_the_next_node_as_well_does_so_in_a_job_of_any_size() -> None:
    times = [device("a", 9, 3), device("b", 9), device("b", 9), device("c", 9, at=900.0)]
    found = judged(times, 12_500)
    assert found is not None and found.certain


def test_a_rank_that_comes_to_a_node_which_had_failed_before_says_nothing_of_the_code() -> None:
    """In a large job without a spare: one node is broken, another one breaks meanwhile and is left,
    and the first gets its rank."""
    times = [
        device("b", 9, 1, at=0.0), device("c", 9, 2, at=100.0), device("c", 9, 2, at=430.0),
        device("b", 9, 2, at=750.0),
    ]  # fmt: skip
    assert judged(times, nodes=12_800) is None
    assert judged([*times[1:3], device("d", 9, 2, at=750.0)], nodes=12_800) is not None


def test_what_comes_at_different_steps_only_ever_on_one_node_is_suspected_of_its_machine() -> None:
    found = judged([came("b", 5), came("b", 9, rank=2), came("b", 9), came("b", 30)])
    assert found is not None and found.whose == "machine" and not found.certain
    assert found.text == (
        "the same error occurred at 3 different steps, only on b, while 7 other nodes did the "
        "same work without it: its machine is suspected"
    )


@pytest.mark.parametrize(("nodes", "times"), [(2, 6), (3, 4), (4, 4), (5, 3), (1000, 3)])
def test_it_takes_as_many_as_chance_would_hardly_bring(nodes: int, times: int) -> None:
    """Of two nodes each has every third of them in a quarter of all cases."""
    row = [came("b", step) for step in range(1, times + 1)]
    assert judged(row[:-1], nodes) is None
    found = judged(row, nodes)
    assert found is not None and found.whose == "machine"


THRICE = [came("b", step) for step in (5, 6, 7)]
NOTHING = {
    "once": [came("b", 9)],
    "twice on one node": [device("b", 9), device("b", 9)],
    "devices of two nodes, at other steps": [device("b", 9), device("c", 10, 2)],
    "another error": [device("b", 9), came("c", 9, 2, signature="KeyError@train.py:3")],
    "another version": [device("b", 9), device("c", 9, 2, version=2)],
    "on one node, always at the same step": [came("b", 9) for _ in range(9)],
    "on another node, too": [*THRICE[:2], came("c", 8, 2), came("b", 9)],
    "on another node at the same time": [came("b", 4, also=("c",)), *THRICE],
    "only of rank 0, which does what no other does": [came("a", s, 0) for s in (5, 6, 7, 8)],
    "of a device, which is counted anyway": [device("b", step) for step in (5, 6, 7)],
    "of another rank, on another node": [*THRICE, came("c", 8, 2)],
    "of a device, after the node was left": [*(device("b", s) for s in (5, 6, 7)), device("c", 8)],
}


@pytest.mark.parametrize("times", NOTHING.values(), ids=NOTHING.keys())
def test_nothing_is_said_where_it_may_be_either(times: list[Occurrence]) -> None:
    assert judged(times) is None


def test_no_machine_is_suspected_that_cannot_be_compared() -> None:
    assert judged(THRICE, 1) is None
    assert judge(THRICE[-1], THRICE[:-1], 8) is not None
    assert judge(THRICE[-1], THRICE[:-1], 8, alike=False) is None, "stages of a pipeline"


# ── what is compared ──


def exited(rank: int, error: WorkerError | None, step: int | None = 9) -> WorkerExited:
    return WorkerExited(
        node=f"n{rank}", attempt=1, rank=rank, exit_code=1, error=error,
        progress=Progress(step=step), ago_s=2.0 - rank / 10,
    )  # fmt: skip


def occurred(*exits: WorkerExited) -> Occurrence | None:
    others = {1: ((4, 5),)}
    verdict = weigh(exits, None, others)
    return code_or_machine.occurrence(verdict, exits, others, "abcdefgh".__getitem__, 3)


def test_an_error_is_compared_by_its_place_and_step_with_all_nodes_that_had_it() -> None:
    found = occurred(exited(1, SCRIPT), exited(2, SCRIPT), exited(3, None))
    assert found == Occurrence(
        cause="worker-exception", signature="ValueError@train.py:12", rank=1, step=9,
        nodes=("b", "c", "e", "f"), version=3,
    )  # fmt: skip


def test_of_an_error_of_a_device_only_the_first_node_counts() -> None:
    """One that fails may take others with it."""
    found = occurred(exited(1, ILLEGAL), exited(2, ILLEGAL))
    assert found is not None and (found.cause, found.nodes) == ("device-error", ("b",))


LOST = WorkerError(type="RuntimeError", message="CUDA error: GPU is lost")
AWAY = WorkerError(type="TimeoutError", message="timed out")


@pytest.mark.parametrize(
    "one",
    [
        exited(1, None),
        exited(1, SCRIPT, step=None),
        exited(1, ILLEGAL, step=0),
        exited(1, LOST),
        exited(1, AWAY),
        WorkerExited(node="n1", attempt=1, rank=1, exit_code=0, progress=Progress(step=9)),
    ],
    ids=["no exception", "no steps", "before the first", "lost", "environment", "left early"],
)
def test_what_cannot_be_the_scripts_or_has_no_place_is_not_compared(one: WorkerExited) -> None:
    assert occurred(one) is None


LOADER = WorkerError(
    type="RuntimeError",
    message="DataLoader worker (pid 7) is killed by signal: Killed. ",
    file="train.py",
    line=20,
)


def killed(error: WorkerError | None, step: int | None = 9) -> Occurrence | None:
    number = None if error is not None else 9
    one = WorkerExited(
        node="b", attempt=1, rank=1, exit_code=None if error is None else 1, signal=number,
        error=error, progress=Progress(step=step),
    )  # fmt: skip
    verdict = weigh([one])
    assert verdict.cause == "worker-killed"
    return code_or_machine.occurrence(verdict, [one], {}, lambda _: "b", 1)


def test_a_data_loader_killed_at_one_step_again_and_again_reads_what_is_too_large() -> None:
    first = killed(LOADER)
    assert first is not None and judge(first, [], 1) is None
    assert judge(first, [first], 1) is None, "twice may be chance, such as pressure that lasts"
    third = judge(first, [first, first], 1)
    assert third is not None and third.certain
    assert third.text.startswith("a data loader process was killed 3 times after step 9; cause: ")


def test_a_data_loader_killed_at_other_steps_is_not_the_scripts() -> None:
    steps = [killed(LOADER, step) for step in (7, 8, 9)]
    times = [one for one in steps if one is not None]
    assert len(times) == 3 and judged(times, 1) is None


def test_a_worker_that_is_killed_itself_or_before_its_first_step_is_not_compared() -> None:
    assert killed(None) is None
    assert killed(LOADER, None) is None
