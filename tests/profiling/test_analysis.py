"""A step is divided into parts that sum to it, whatever the trace is like.

`cuda_trace.json` and `cuda_snapshot_trace.json` were made by hand in the format that Kineto writes
on a machine with a GPU; traces of the CPU come from PyTorch itself.
"""

import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.profiles import PART_NAMES, SNAPSHOT, RankProfile, StepParts, TopKernel
from holdfast.profiling.advice import RULES, advice, differences
from holdfast.profiling.analysis import ProfiledSteps, own_spans, profile_of
from holdfast.profiling.intervals import length, shared
from holdfast.profiling.trace import Trace, TraceEvent, part_on_gpu, read

MADE = read(Path(__file__).with_name("cuda_trace.json").read_bytes())
SNAPSHOTTING = read(Path(__file__).with_name("cuda_snapshot_trace.json").read_bytes())
WORDS = ("every_steps", "pin_memory")
BASE_NS = MADE.base_time_nanoseconds


def steps(*ends_us: int, waits_us: tuple[tuple[int, int], ...] = ()) -> ProfiledSteps:
    waits = [(BASE_NS + 1000 * begin, 1000 * took) for begin, took in waits_us]
    return ProfiledSteps(5, [BASE_NS + 1000 * end for end in ends_us], waits)


def test_a_step_on_a_gpu_is_divided_by_what_the_gpu_does() -> None:
    """From 1000 to 2000 µs: copy 1100-1200, matrix product 1200-1500, NCCL 1400-1700, memset
    1650-1750, and the loop waits for data 1740-1900."""
    found = profile_of(MADE, steps(1000, 2000))
    parts = [round(1e6 * getattr(found.parts, name)) for name in PART_NAMES]
    assert dict(zip(PART_NAMES, parts, strict=True)) == {
        "compute": 300, "communication": 200, "copies": 150, "snapshots": 0, "data": 150,
        "idle": 200,
    }  # fmt: skip
    assert found.communication_s == pytest.approx(300e-6)
    assert found.overlap == pytest.approx(1 / 3)
    assert (found.device, found.first_step, found.steps) == ("cuda", 5, 1)
    assert [one.part for one in found.top] == ["communication", "compute", "copies", "copies"]


def test_copies_of_a_snapshot_are_told_from_those_of_the_script() -> None:
    """The main thread queues a snapshot's copies for a stream beside: 1100-1400, of which a kernel
    hides 1150-1350, and 1500-1700, for which the next kernel waits. Another thread has 1410-1440
    copied meanwhile; what the script fetches itself is copied from 1800 to 1850."""
    found = profile_of(SNAPSHOTTING, steps(1000, 2000))
    parts = [round(1e6 * getattr(found.parts, name)) for name in PART_NAMES]
    assert dict(zip(PART_NAMES, parts, strict=True)) == {
        "compute": 290, "communication": 0, "copies": 80, "snapshots": 300, "data": 0, "idle": 330,
    }  # fmt: skip
    name = "Memcpy DtoH (Device -> Pinned)"
    counted = {one.part: one.count for one in found.top if one.name == name}
    assert counted == {"snapshots": 2, "copies": 2}
    told = {word: one.share for one in advice([found]) for word in WORDS if word in one.what}
    assert told == {"every_steps": pytest.approx(0.3), "pin_memory": pytest.approx(0.08)}


def test_without_a_gpu_all_that_is_done_for_a_snapshot_is_its_own() -> None:
    ours = TraceEvent(ph="X", cat="user_annotation", name=SNAPSHOT, ts=100, dur=200, tid=1)
    events = [
        ours,
        TraceEvent(ph="X", cat="cpu_op", name="aten::copy_", ts=110, dur=50, tid=1),
        TraceEvent(ph="X", cat="cpu_op", name="aten::mm", ts=250, dur=20, tid=2),
        TraceEvent(ph="X", cat="cpu_op", name="aten::copy_", ts=400, dur=50, tid=1),
    ]
    trace = Trace(trace_events=events, base_time_nanoseconds=BASE_NS)
    parts = profile_of(trace, steps(0, 1000)).parts
    assert parts.snapshots == pytest.approx(180e-6)
    assert parts.compute == pytest.approx(20e-6) and parts.copies == pytest.approx(50e-6)


def test_parts_are_those_of_one_step_and_of_what_lies_in_the_steps() -> None:
    whole, half = profile_of(MADE, steps(1000, 1500, 2000)), profile_of(MADE, steps(1000, 1500))
    assert whole.parts.step_s == pytest.approx(500e-6) == pytest.approx(half.parts.step_s)
    assert whole.parts.compute == pytest.approx(150e-6)
    assert half.parts.compute == pytest.approx(300e-6) and half.communication_s < 101e-6


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "communication"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs)", "communication"),
        ("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("mscclKernel_Sum_half_LL", "communication"),
        ("nvshmemi_transfer_rma", "communication"),
        ("void at::native::multimem_all_reduce_kernel<c10::BFloat16, 8>(x)", "communication"),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float>", "communication"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32", "compute"),
        ("void at::native::reduce_kernel<512, 1>", "compute"),
    ],
)
def test_kernels_of_collectives_are_known_by_name(name: str, part: str) -> None:
    assert part_on_gpu(TraceEvent(ph="X", cat="kernel", name=name)) == part


@pytest.mark.parametrize("ends", [(), (1000,), (2000, 1000), (1000, 1000)])
def test_without_a_whole_step_there_is_no_profile(ends: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no whole step"):
        profile_of(MADE, steps(*ends))


kinds = st.sampled_from(
    [
        ("kernel", "gemm"),
        ("kernel", "ncclDevKernel_AllGather"),
        ("gpu_memcpy", "Memcpy DtoH"),
        ("cpu_op", "aten::mm"),
        ("cpu_op", "aten::copy_"),
        ("cpu_op", "c10d::allreduce_"),
        ("user_annotation", "gloo:all_reduce"),
        ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
        ("user_annotation", "Optimizer.step#SGD.step"),
        ("user_annotation", SNAPSHOT),
        ("cuda_runtime", "cudaLaunchKernel"),
    ]
)
events = st.builds(
    lambda kind, ts, dur, tid: TraceEvent(
        ph="X", cat=kind[0], name=kind[1], ts=ts, dur=dur, pid=1, tid=tid
    ),
    kinds,
    st.integers(0, 3000),
    st.integers(0, 1500),
    st.integers(1, 3),
)
waits = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 900)), max_size=4)


@given(st.lists(events, max_size=25), waits)
def test_the_parts_sum_to_the_step_and_none_is_negative(
    some: list[TraceEvent], waited: list[tuple[int, int]]
) -> None:
    trace = Trace(trace_events=some, base_time_nanoseconds=BASE_NS)
    found = profile_of(trace, steps(500, 1100, 2500, waits_us=tuple(waited)))
    assert found.parts.step_s == pytest.approx(1000e-6)
    assert all(getattr(found.parts, name) >= 0 for name in PART_NAMES)
    assert sum(found.parts.share(name) for name in PART_NAMES) == pytest.approx(1)
    assert found.parts.communication <= found.communication_s + 1e-12
    assert found.overlap is None or -1e-9 <= found.overlap <= 1 + 1e-9


@given(st.lists(events, max_size=20))
def test_each_moment_of_a_thread_belongs_to_one_operator(some: list[TraceEvent]) -> None:
    found = own_spans(some)
    assert len(found) == len(some)
    alone = [span for _, spans in found for span in spans]
    for event, spans in found:
        assert all(event.span[0] <= begin < end <= event.span[1] for begin, end in spans)
    ordered = sorted(alone)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ordered))


def test_an_operator_counts_without_what_it_calls() -> None:
    outer = TraceEvent(ph="X", cat="cpu_op", name="aten::linear", ts=0, dur=100)
    inner = TraceEvent(ph="X", cat="cpu_op", name="aten::addmm", ts=20, dur=50)
    known = {event.name: spans for event, spans in own_spans([inner, outer])}
    assert known == {"aten::linear": [(0, 20), (70, 100)], "aten::addmm": [(20, 70)]}
    assert length(shared(known["aten::linear"], known["aten::addmm"])) == 0


def test_without_a_gpu_what_is_done_in_a_wait_for_a_batch_is_data() -> None:
    operator = TraceEvent(ph="X", cat="cpu_op", name="aten::stack", ts=100, dur=200)
    trace = Trace(trace_events=[operator], base_time_nanoseconds=BASE_NS)
    found = profile_of(trace, steps(0, 1000, waits_us=((50, 200),)))
    assert found.parts.data == pytest.approx(200e-6)
    assert found.parts.compute == pytest.approx(50e-6)


def profile(rank: int = 0, device: str = "cuda", **parts: float) -> RankProfile:
    top = (TopKernel(name="gemm", part="compute", count=10, total_s=0.01),)
    return msgspec.convert(
        {"rank": rank, "steps": 1, "parts": {"compute": 0.1, **parts}, "device": device,
         "top": msgspec.to_builtins(top), "overlap": 0.1},
        RankProfile,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("part", "word"),
    [("data", "DataLoader"), ("communication", "backward"), ("copies", "pin_memory"),
     ("snapshots", "every_steps"), ("idle", "synchronize")],
)  # fmt: skip
def test_the_largest_loss_is_what_is_to_be_tried_first(part: str, word: str) -> None:
    [first, *_] = advice([profile(), profile(3, "cuda", **{part: 0.2})])
    assert (first.rank, word in first.what) == (3, True)
    assert first.share == pytest.approx(2 / 3)


def test_short_kernels_are_launches_and_long_communication_is_not_hidden_any_further() -> None:
    short = msgspec.structs.replace(
        profile(idle=0.1), top=(TopKernel(name="add", part="compute", count=9000, total_s=0.05),)
    )
    assert "torch.compile" in advice([short])[0].what
    hidden = msgspec.structs.replace(profile(communication=0.1), overlap=0.8)
    assert "accumulate" in advice([hidden])[0].what
    assert "stacks" in advice([profile(device="cpu", idle=0.3)])[0].what


def test_where_nothing_stands_out_that_is_said_and_of_nobody_nothing() -> None:
    assert "nothing stands out" in advice([profile()])[0].what
    assert advice([]) == advice([RankProfile(rank=0, why="it has ended")]) == []
    assert differences([]) == []


def test_every_rule_says_what_to_do_and_why() -> None:
    assert all(rule.what and rule.why and 0 < rule.from_share < 1 for rule in RULES)


def test_ranks_that_differ_by_a_tenth_of_the_step_are_named() -> None:
    even = profile(0, idle=0.1), profile(1, idle=0.105)
    assert differences(even) == []
    [one] = differences([*even, profile(2, idle=0.3)])
    assert (one.part, one.most_rank, one.least_rank) == ("idle", 2, 0)
    assert StepParts().share("compute") == 0.0
