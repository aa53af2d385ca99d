"""A known problem that explains an incident is the cause, not what followed from it."""

from pathlib import Path

import msgspec
import pytest

from holdfast.drivers.explained import BEFORE_LINES, known_problem, log_tail
from holdfast.evidence import NodeEvidence, RankEvidence
from holdfast.status import Incident

LOG = "logs/attempt-1/rank-1.log"
RECORDED = Path(__file__).with_name("nccl_system_error.log").read_text()
REFUSED = RECORDED[: RECORDED.index("Traceback")]
SYSTEM_ERROR = RECORDED.removeprefix(REFUSED)
LAST_ERROR = "Last error:\nsocketStartConnect: Connect to 10.0.3.7<41299> failed : timed out\n"
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
PEER_CLOSED = "RuntimeError: [gloo/pair.cc:534] Connection closed by peer [10.0.0.4]:46571\n"
KILLED = "[812.1] Out of memory: Killed process 4711 (python) total-vm:91234kB, anon-rss:81234kB"
STEPS = "".join(f"step {step} loss 2.3\n" for step in range(300))
INCIDENT = Incident(
    id=1, cause="worker-exception", summary="Rank 1 failed", node="node2", rank=1, attempt=1,
    step=None, started_at=0.0, ended_at=None, lost_s=0.0, steps_lost=0, bill={}, actions=(),
    log=LOG,
)  # fmt: skip


def known(
    folder: Path | None,
    output: str = "",
    traceback: str | None = None,
    kernel: tuple[str, ...] = (),
    signal: int | None = None,
    collected: str = "",
) -> str | None:
    """The slug of what explains a failure after this output."""
    other = RankEvidence(rank=0, output=("CUDA out of memory",))
    mine = RankEvidence(rank=1, output=tuple(collected.splitlines()))
    node = NodeEvidence(node="node2", ranks=(other, mine), kernel=kernel)
    incident = msgspec.structs.replace(
        INCIDENT, traceback=traceback, signal=signal, collected=(node,)
    )
    if folder is not None:
        (folder / LOG).parent.mkdir(parents=True, exist_ok=True)
        (folder / LOG).write_text(output)
    found = known_problem(incident, folder)
    return None if found is None else found.slug


def test_the_line_of_nccl_above_its_system_error_names_the_cause(tmp_path: Path) -> None:
    printed = STEPS + REFUSED + SYSTEM_ERROR
    assert "NCCL WARN" not in "\n".join(log_tail(tmp_path, INCIDENT)), "it is further above"
    assert known(tmp_path, printed, SYSTEM_ERROR) == "nccl-connect-failed"
    assert known(tmp_path, printed) == "nccl-connect-failed", "also where nobody kept a traceback"
    assert known(None, traceback=SYSTEM_ERROR, collected=REFUSED) == "nccl-connect-failed"
    assert known(None, traceback=SYSTEM_ERROR + LAST_ERROR) == "nccl-connect-failed"


def test_what_is_general_is_told_where_nothing_else_is_known(tmp_path: Path) -> None:
    assert known(tmp_path, STEPS + SYSTEM_ERROR, SYSTEM_ERROR) == "nccl-system-error"
    assert known(None, traceback=SYSTEM_ERROR) == "nccl-system-error"
    (tmp_path / LOG).unlink()
    assert known_problem(INCIDENT, tmp_path) is None


@pytest.mark.parametrize("before", [REFUSED, PEER_CLOSED, SYSTEM_ERROR])
def test_an_exception_that_names_its_cause_is_believed_whatever_was_printed_before(
    tmp_path: Path, before: str
) -> None:
    assert known(tmp_path, before + OUT_OF_MEMORY, OUT_OF_MEMORY) == "gpu-memory"


def test_an_exception_that_is_not_known_is_not_explained_by_a_warning(tmp_path: Path) -> None:
    assert known(tmp_path, REFUSED, "ValueError: bad", kernel=(KILLED,)) is None


def test_a_consequence_is_explained_by_what_this_rank_has_said_or_not_at_all(
    tmp_path: Path,
) -> None:
    assert known(tmp_path, REFUSED + PEER_CLOSED, PEER_CLOSED) == "nccl-connect-failed"
    assert known(tmp_path, STEPS + PEER_CLOSED, PEER_CLOSED) is None


def test_without_an_exception_the_last_lines_are_searched_and_old_ones_only_if_these_are_general(
    tmp_path: Path,
) -> None:
    assert known(tmp_path, STEPS + OUT_OF_MEMORY) == "gpu-memory"
    assert known(tmp_path, REFUSED + STEPS) is None, "it has trained for long since"
    far = "step 9\n" * BEFORE_LINES
    assert known(tmp_path, REFUSED + far + SYSTEM_ERROR) == "nccl-system-error"


def test_the_kernel_explains_who_was_killed_without_a_word(tmp_path: Path) -> None:
    assert known(tmp_path, STEPS, kernel=(KILLED,), signal=9) == "host-memory"
    assert known(tmp_path, STEPS, kernel=(KILLED,)) is None, "a hang has nothing to do with it"
    assert known(tmp_path, STEPS, signal=9) is None
