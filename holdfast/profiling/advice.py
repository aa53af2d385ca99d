"""What to try first, and how ranks differ: a table of rules over profiles.

A rule has what it costs as a share of the step, from which share on it is worth a word, and, where
that depends on more, when it holds. The costliest that holds comes first. The remedies are those of
PyTorch's Performance Tuning Guide and of the CUDA C++ Best Practices Guide.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.profiles import PART_NAMES, RankProfile

SMALL_KERNEL_S = 20e-6  # shorter than about two launches, 5 to 10 µs each
APART = 0.1  # of the step, from which on a difference between ranks is told


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What may be gained at most (share of the step), what to try, and why."""

    rank: int
    share: float
    what: str
    why: str


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a step that takes ranks unequally long, seconds of a step."""

    part: str
    most_rank: int
    most_s: float
    least_rank: int
    least_s: float


class AdviceRule(NamedTuple):
    """One line of the table."""

    cost: Callable[[RankProfile], float]
    from_share: float
    what: str
    why: str
    holds: Callable[[RankProfile], bool] = lambda _profile: True


def _share(part: str) -> Callable[[RankProfile], float]:
    return lambda profile: profile.parts.share(part)


def _hidden(profile: RankProfile) -> float:
    return profile.overlap or 0.0


def _kernels_are_small(profile: RankProfile) -> bool:
    runs = [one for one in profile.top if one.part == "compute"]
    count = sum(one.count for one in runs)
    return count > 0 and sum(one.total_s for one in runs) / count < SMALL_KERNEL_S


def _largest(profile: RankProfile) -> float:
    compute = (one.total_s for one in profile.top if one.part == "compute")
    step_s = profile.parts.step_s * profile.steps
    return max(compute, default=0.0) / step_s if step_s else 0.0


RULES = (
    AdviceRule(
        _share("data"),
        0.05,
        "give the DataLoader more workers (num_workers, prefetch_factor, persistent_workers)",
        "the loop waits for its next batch while nothing else is done",
    ),
    AdviceRule(
        _share("communication"),
        0.05,
        "overlap gradient reduction with the backward pass (DDP buckets, FSDP prefetch), and "
        "remove what is not needed in each step (all_reduce of a loss, barriers)",
        "less than half of the communication is overlapped with compute",
        lambda profile: _hidden(profile) < 0.5,
    ),
    AdviceRule(
        _share("communication"),
        0.05,
        "communicate less: accumulate gradients, compress them, or another layout (holdfast plan)",
        "most communication is overlapped with compute, and still takes longer than that",
        lambda profile: _hidden(profile) >= 0.5,
    ),
    AdviceRule(
        _share("copies"),
        0.05,
        "keep data where it is used: pin_memory with non_blocking copies, fewer .cpu() and .to()",
        "memory is copied while nothing is computed",
    ),
    AdviceRule(
        _share("snapshots"),
        0.05,
        "take snapshots less often: a larger snapshots.every_steps, or `auto`, which spends at "
        "most snapshots.max_overhead on them",
        "Holdfast copies the training state for a snapshot while nothing is computed",
    ),
    AdviceRule(
        _share("idle"),
        0.15,
        "launch fewer, larger kernels: torch.compile, CUDA graphs, a larger batch, fused=True",
        "kernels are so short that the host cannot launch them fast enough",
        lambda profile: profile.device == "cuda" and _kernels_are_small(profile),
    ),
    AdviceRule(
        _share("idle"),
        0.15,
        "find what makes the host wait for the GPU: .item(), print(loss), .cpu(), synchronize()",
        "the GPU is idle, though its kernels are long enough to be launched ahead",
        lambda profile: profile.device == "cuda" and not _kernels_are_small(profile),
    ),
    AdviceRule(
        _share("idle"),
        0.15,
        "look at the Python code between operators: holdfast stacks shows where it is",
        "no operator of PyTorch runs in this time",
        lambda profile: profile.device == "cpu",
    ),
    AdviceRule(
        _largest,
        0.4,
        "look at the one kernel at the top: its shapes, its precision (bf16), a fused version",
        "one kernel takes most of the step",
    ),
)
NOTHING = Advice(
    rank=0,
    share=0.0,
    what="nothing stands out: what remains is precision (bf16), torch.compile, batch size",
    why="the step is compute, spread over many kernels",
)


def advice(profiles: Sequence[RankProfile]) -> list[Advice]:
    """Of all rules that hold for any of these ranks, each for the rank that it costs most; the
    costliest first. One that says that nothing stands out, where none holds; nothing for none."""
    measured = [one for one in profiles if not one.why]
    found = []
    for rule in RULES:
        held = [one for one in measured if rule.holds(one) and rule.cost(one) >= rule.from_share]
        if held:
            worst = max(held, key=lambda one: (rule.cost(one), -one.rank))
            share = rule.cost(worst)
            found.append(Advice(rank=worst.rank, share=share, what=rule.what, why=rule.why))
    found.sort(key=lambda one: -one.share)
    if found or not measured:
        return found
    return [msgspec.structs.replace(NOTHING, rank=measured[0].rank)]


def differences(profiles: Sequence[RankProfile]) -> list[Difference]:
    """Parts that take some rank longer than another by a tenth of the step; the largest first."""
    measured = [one for one in profiles if not one.why]
    if len(measured) < 2:
        return []
    step_s = max(one.parts.step_s for one in measured)
    found = []
    for part in PART_NAMES:
        took = {one.rank: getattr(one.parts, part) for one in measured}
        most, least = max(took, key=took.__getitem__), min(took, key=took.__getitem__)
        if took[most] - took[least] >= APART * step_s > 0:
            found.append(
                Difference(
                    part=part,
                    most_rank=most,
                    most_s=took[most],
                    least_rank=least,
                    least_s=took[least],
                )
            )
    return sorted(found, key=lambda one: one.least_s - one.most_s)
