"""Whatever an incident is called, there is something to do about it."""

import signal

import pytest

from holdfast.diagnosis import CAUSES, weigh
from holdfast.diagnosis.advice import ADVICE, BY_SIGNAL, advice
from holdfast.events import WorkerExited


def test_every_cause_comes_with_what_to_do_about_it() -> None:
    assert set(ADVICE) == set(CAUSES)
    assert all(text.endswith((".", ").")) and len(text) > 20 for text in ADVICE.values())


@pytest.mark.parametrize("number", sorted(BY_SIGNAL))
def test_a_signal_with_one_meaning_is_explained_by_it_and_not_by_memory(number: int) -> None:
    verdict = weigh([WorkerExited(node="n", attempt=1, rank=0, exit_code=None, signal=number)])
    assert signal.Signals(number).name in verdict.summary
    assert "memory" not in advice(verdict.cause, number)
    assert "memory" in advice(verdict.cause, signal.SIGKILL)


def test_the_status_of_python_that_could_not_write_its_output_is_told_as_that() -> None:
    verdict = weigh([WorkerExited(node="n", attempt=1, rank=0, exit_code=120)])
    assert "Python could not write the rest of its output" in verdict.summary
    assert "sys.exit" not in advice(verdict.cause, exit_code=120)
    assert "sys.exit" in advice(verdict.cause, exit_code=1)
