"""Who waits for a rank has memory for its first step, and does not keep what others lack."""

import os
import resource

import pytest
import torch

from holdfast import devices, rank
from holdfast.checkpoint.free_memory import FreeMemory
from holdfast.train import group, memory_ahead
from tests.patience import PATIENCE_S
from tests.warm import PIPE, Script

FAULTS = """
import resource, torch
from holdfast.train import memory_ahead

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

memory_ahead.find()
steps = []
for _ in range(2):  # the second has more than was found ahead
    before = faults()
    steps.append([torch.zeros(1 << 20, dtype=torch.uint8) for _ in range(40)])
    print(faults() - before)
"""
PAGES = 40 * (1 << 20) // resource.getpagesize()


def test_a_first_step_faults_on_little_of_what_it_computes_with() -> None:
    """Tensors of 1 MiB in a process of its own."""
    out, _ = Script([FAULTS], stdout=PIPE, text=True).communicate(timeout=PATIENCE_S)
    first, more = map(int, out.split())
    assert first < PAGES // 8
    assert more > PAGES // 3, "or the promise holds anyway"


def test_nothing_is_found_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(memory_ahead, "_block", asked.append)
    found = memory_ahead.SHARE * memory_ahead.BLOCKS * memory_ahead.BLOCK_BYTES
    monkeypatch.setattr(memory_ahead, "free_memory", lambda: FreeMemory(found - 1, "of a test"))
    memory_ahead.find()
    assert asked == []


def test_a_limit_of_the_process_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_length: int) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(rank, "while_waiting", [])
    monkeypatch.setattr(memory_ahead, "_block", refused)
    monkeypatch.setenv(rank.CONTROL, "7")
    memory_ahead.offer()
    with pytest.raises(RuntimeError):
        memory_ahead.find()
    rank.while_waiting[0](7)


def test_only_who_waits_for_a_rank_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "while_waiting", [])
    monkeypatch.delenv(rank.CONTROL, raising=False)
    memory_ahead.offer()
    assert rank.while_waiting == []
    monkeypatch.setenv(rank.CONTROL, "7")
    memory_ahead.offer()
    assert len(rank.while_waiting) == 1


@pytest.mark.parametrize(
    ("wanted", "said", "cpu"),
    [("cpu", None, True), ("cuda", "cpu", False), (None, "cpu", True), ("cuda", None, False)],
)
def test_a_step_on_a_gpu_needs_none_of_it(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None, said: str | None, cpu: bool
) -> None:
    monkeypatch.setattr(os, "environ", {devices.VARIABLE: said} if said is not None else {})
    assert group.computes_on_cpu(torch.device(wanted) if wanted else None) is cpu
