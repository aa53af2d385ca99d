"""What workers without progress do, by several looks at each of them: hung, slow, or paused.

Whoever stands at another place than those that wait in a collective is the one they wait for;
where stacks do not tell, it is the minority by step and phase, or the smallest group of stacks.
What the suspects did between the looks decides: who stood still and used no processor hangs, at
once or, where it waits for data or another program, after half a minute; who computed without
moving is given a minute, and so is who waits for a file system, or stood still while its GPU
computed, unless it waits in a collective, which keeps a GPU busy, too; who moved evaluates, or
saves, and is given as long as the job file says, and so is who stands in a compiler: that may run
for minutes, and ranks wait for each other's without moving. If all wait at one place the network
may be back in a moment; where nodes cannot even connect to each other meanwhile (`apart`), it is
given less. Where the job file says how long a step may take (`overdue`), whoever is in one is
given no more, unless it stands in a compiler. Of a script that does not report steps nobody knows
whether it still trains, so without that it may work for as long as it likes. If one of those that
wait moves, nobody waits for anybody. Workers that were all stopped, or that somebody debugs, do
not hang.
"""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache
from typing import NamedTuple

import msgspec

from holdfast.collectives import GroupLog
from holdfast.diagnosis import at_its_end
from holdfast.diagnosis.collectives import CollectiveFinding, Story, find, last_of_groups
from holdfast.diagnosis.stuck import DOING, behind
from holdfast.events import HangJudged, HangSuspected, Judgement, each_of, in_rows
from holdfast.messages import WorkerReport
from holdfast.stacks import Activity, StackGroup, in_words

SPIN_S = 60.0  # for a worker that computes and does not move
SPIN_STEPS = 20.0  # median steps
TOGETHER_S = 15.0  # where all wait at one place: a link comes back, or never
PARTED_S = 4.0  # where nodes also cannot connect to each other
EXTERNAL_S = 30.0  # for data or another program
BLIND_S = 30.0  # where stacks cannot be read, and nobody uses a processor
LINES_MAX = 16  # of evidence
FRAMES_SHOWN = 4
PLACES_SHOWN = 3
KNOWN_MAX = 1024  # stacks of which something is known: many thousand ranks stand at a few places
STOPPED = ("stopped",)
TRACED = ("tracing-stop",)
IN_KERNEL = ("disk-sleep",)
# Functions of the kernel in which a thread waits for another one, or for time to pass; in others it
# waits for a file, a socket, a pipe or a process.
AMONG_THREADS = ("futex", "hrtimer_nanosleep", "do_nanosleep", "do_signal_stop", "ptrace_stop")
# And those in which it waits for a file system: of FUSE, NFS, SMB, 9P, Ceph, Lustre and GPFS.
FILE_SYSTEMS = (
    "request_wait_answer", "fuse_", "rpc_wait", "nfs", "cifs_", "smb", "wait_for_response", "p9_",
    "ceph_", "ptlrpc_", "cl_", "osc_", "ll_", "cxi", "folio_wait", "io_schedule",
)  # fmt: skip
QUIET = (Activity.STILL, Activity.BACKGROUND)
ENDED = "the process has ended"
AFTER_LOOP = "After the training loop"
# Functions of torch in which a rank waits for others.
WAITS = frozenset(
    (
        "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object",
        "all_gather_single", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier",
        "broadcast", "broadcast_object_list", "gather", "gather_object", "recv",
        "recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter",
        "scatter_object_list", "send", "send_object_list", "batch_isend_irecv", "wait_tensor",
        "synchronize", "_engine_run_backward", "_store_based_barrier",
    )
)  # fmt: skip
FOR_ITS_DEVICE = "synchronize"  # of those, the one that may be for its own kernels
OUR_WAITS = "holdfast/train/exchange.py"  # where ranks tell each other of snapshots
WAITING_FILES = ("torch/distributed/", "torch/autograd/", "torch/cuda/", "torch/accelerator/")
NETWORK = (  # where a thread of any kind waits for something outside
    "ssl.py", "socket.py", "http/", "urllib3/", "requests/", "httpx/", "botocore/", "tenacity/",
    "backoff/", "retrying", "fsspec/", "s3fs/", "gcsfs/", "subprocess.py", "torch/serialization.py",
    "torch/distributed/checkpoint/",
)  # fmt: skip
EXTERNAL = (  # where a main thread does
    *NETWORK, "selectors.py", "queue.py", "multiprocessing/", "asyncio/", "torch/utils/data/",
)  # fmt: skip
DEBUGGERS = ("pdb.py", "bdb.py", "debugpy/", "pydevd", "ipdb/")


class SeenRank(NamedTuple):
    """What a rank was seen to do."""

    rank: int
    group: StackGroup

    @property
    def waits(self) -> bool:
        """For other ranks, by where it stands: below the wait there is nothing of the script."""
        return _end_in_a_wait(self.group.frames)

    @property
    def uses_gpu(self) -> bool:
        """Whether its GPU has work that may be its own."""
        frames = (frame.partition(" (")[0] for frame in reversed(self.group.frames))
        return self.group.gpu_busy and (not self.waits or FOR_ITS_DEVICE in frames)


def judge(
    suspicion: HangSuspected,
    groups: Sequence[StackGroup],
    missing: Sequence[str],
    pages: Mapping[int, WorkerReport],
    timeout_s: float,
    collectives: Sequence[GroupLog] = (),
    *,
    some_exited: bool = False,
) -> HangJudged:
    """From the newest page of each rank, looks at all workers that could be reached, and what they
    have entered.

    `missing` are nodes that did not answer. After `timeout_s` whoever makes no progress hangs,
    unless somebody wants that, as where all are stopped; not where only those are left that are
    (`some_exited`): the others went on to their end meanwhile.
    """
    looks = [SeenRank(rank, group) for group in groups for rank in each_of(group.ranks)]
    finding = find(collectives)
    seen = [look.rank for look in looks]
    suspects = suspects_among(looks, pages, finding)
    told = HangTold(suspicion, groups, [look.rank for look in suspects], finding, collectives)
    if paused := paused_by(looks, all_live=not some_exited):
        return told(Judgement.PAUSED, paused, 0.95)
    stopped = [look for look in looks if look.group.state in STOPPED]
    if stopped:
        who = HangTold(suspicion, groups, [look.rank for look in stopped], finding, collectives)
        named = ranks_named([look.rank for look in stopped])
        return who(Judgement.HANG, f"{named} {_was(stopped)} stopped by a signal (SIGSTOP)", 0.97)
    late = suspicion.reported and suspicion.ago_s >= timeout_s
    if missing or not looks or any(look.group.why == ENDED for look in looks):
        who = HangTold(suspicion, groups, (), finding, collectives)
        return _unseen(who, missing, late=late)
    if at_its_end.all_are(seen, pages):
        return _at_the_end(HangTold(suspicion, groups, (), None, collectives), looks)
    if at_its_end.some_are(seen, pages):
        return told(Judgement.SLOW, "No step: some ranks have left their training loop", 0.7)
    return _by_activity(told, looks, suspects, pages, late=late)


def _at_the_end(told: "HangTold", looks: Sequence[SeenRank]) -> HangJudged:
    """Nobody waits for a single one, and what works or waits outside may save the last step."""
    works = any(_activity(look) is not Activity.STILL for look in looks)
    threads = [thread for look in looks for thread in look.group.threads[1:]]
    outside = any(_stand_in(thread.frames, NETWORK) for thread in threads)
    patient = len(looks) == 1 or works or outside or any(map(_is_outside, looks))
    story = at_its_end.story([look.group for look in looks])
    if patient or told.suspicion.ago_s < TOGETHER_S:
        return told(Judgement.SLOW, f"No step: {story}", 0.7)
    found = told(Judgement.HANG, f"All ranks hung: {story}", 0.9)
    return msgspec.structs.replace(found, ended=True)


def judge_after_loop(
    suspicion: HangSuspected, groups: Sequence[StackGroup], missing: Sequence[str], *, long: bool
) -> HangJudged:
    """Of ranks that have all left their loops, where they may work for hours and wait for each
    other: they hang if all that are left destroy their process group, and have been seen to for
    `long`, and nothing of the script goes on in other threads. `missing` as in `judge`."""
    looks = [SeenRank(rank, group) for group in groups for rank in each_of(group.ranks)]
    told = HangTold(suspicion, groups, (), None)
    if paused := paused_by(looks):
        return told(Judgement.PAUSED, paused, 0.95)
    if missing or not looks or any(look.group.why == ENDED for look in looks):
        who = f"node {missing[0]} did not answer" if missing else "a worker has just ended"
        return told(Judgement.UNKNOWN, f"{AFTER_LOOP}: {who}", 0.3)
    works = next((one for one in looks if not at_its_end.closes(one.group)), None)
    works = works or next((one for one in looks if _works_beside(one.group)), None)
    if works is not None or not long:
        one = works or looks[0]
        return told(Judgement.SLOW, f"{AFTER_LOOP}: rank {one.rank} {place_of(one)}", 0.7)
    who = ranks_named([look.rank for look in looks])
    found = told(Judgement.HANG, f"{who} hung: {place_of(looks[0])}, after the training loop", 0.9)
    return msgspec.structs.replace(found, ended=True)


def _works_beside(group: StackGroup) -> bool:
    """Whether a thread of the script may do something, such as the upload of a checkpoint."""
    others = [thread.frames for thread in group.threads[1:]]
    own = any(not _is_library(frame) for frames in others for frame in frames)
    return network_beside(group) or (own and group.activity is not Activity.STILL)


def network_beside(group: StackGroup) -> bool:
    """Whether a thread other than the main one waits for the network, or another program."""
    return any(_stand_in(thread.frames, NETWORK) for thread in group.threads[1:])


def apart(
    judged: HangJudged,
    suspicion: HangSuspected,
    groups: Sequence[StackGroup],
    lines: Sequence[str],
) -> HangJudged:
    """The judgement, with what nodes tell that could not reach each other. Where all ranks wait for
    others meanwhile, that is why, and a link that has not come back within `PARTED_S` is waited for
    no longer, whatever else a worker computes in the background."""
    judged = msgspec.structs.replace(judged, evidence=(*lines, *judged.evidence)[:LINES_MAX])
    looks = [SeenRank(next(each_of(group.ranks)), group) for group in groups]
    together = len({look.group.frames for look in looks}) == 1
    waits = together or (bool(looks) and all(look.waits for look in looks))
    waits &= all(look.group.activity is not Activity.MOVES for look in looks)
    slow = judged.judgement is Judgement.SLOW and suspicion.ago_s >= PARTED_S
    if not (waits and slow):
        return judged
    told = HangTold(suspicion, groups, (), None)
    found = told(Judgement.HANG, f"All ranks hung: {'; '.join(lines[:PLACES_SHOWN])}", 0.9)
    return msgspec.structs.replace(found, evidence=judged.evidence)


class HangTold:
    """Makes the answer to one suspicion."""

    def __init__(
        self,
        suspicion: HangSuspected,
        groups: Sequence[StackGroup],
        ranks: Sequence[int],
        finding: CollectiveFinding | None,
        collectives: Sequence[GroupLog] = (),
    ) -> None:
        self.suspicion, self.groups, self.ranks = suspicion, groups, ranks
        self.finding, self.collectives = finding, collectives

    def __call__(self, judgement: Judgement, summary: str, confidence: float) -> HangJudged:
        after = f" after step {self.suspicion.step}" if self.suspicion.step is not None else ""
        where = after if judgement is Judgement.HANG else f" for {self.suspicion.ago_s:.0f} s"
        first, colon, rest = summary.partition(":")
        named = (f"collectives: {self.finding.text}",) if self.finding is not None else ()
        found = (*named, *last_of_groups(self.collectives))
        return HangJudged(
            attempt=self.suspicion.attempt,
            judgement=judgement,
            summary=f"{first}{where}{colon}{rest}",
            confidence=confidence,
            ago_s=self.suspicion.ago_s,
            ranks=in_rows(self.ranks) if judgement is Judgement.HANG else (),
            evidence=(*found, *map(_line, self.groups[: LINES_MAX - len(found)])),
        )


def _by_activity(
    told: HangTold,
    looks: Sequence[SeenRank],
    suspects: Sequence[SeenRank],
    pages: Mapping[int, WorkerReport],
    *,
    late: bool,
) -> HangJudged:
    chosen = {look.rank for look in suspects}
    others = [look for look in looks if look.rank not in chosen]
    waited_for = suspects or looks
    finding = told.finding
    on_gpu = _are_on_gpus(suspects or (looks if len(looks) == 1 else ()), finding)
    most = max((_does(look, on_gpu=on_gpu) for look in waited_for), key=_liveliness)
    summary = story_of(suspects, others, pages, finding)
    blind = not any(look.group.frames for look in looks)
    named = finding is not None and finding.blames
    sure = 0.95 if named else 0.5 if blind else 0.9 if suspects else 0.7
    if late:
        return told(Judgement.HANG, summary, 0.6)
    working = next((one for one in others if one.group.activity is Activity.MOVES), None)
    if working is not None and suspects:
        return told(Judgement.SLOW, f"No step: rank {working.rank} works {place_of(working)}", 0.7)
    compiling = next((one for one in waited_for if one.group.compiles), None)
    if compiling is not None:
        return told(
            Judgement.SLOW, f"No step: rank {compiling.rank} compiles {place_of(compiling)}", 0.8
        )
    if told.suspicion.overdue and _still_in_it(told.suspicion, pages):
        return told(Judgement.HANG, summary, 0.8)
    still_s = BLIND_S if blind else _stillness_s(suspects, looks, finding)
    patience_s = _patience_s(most, told.suspicion, still_s)
    if not told.suspicion.reported and patience_s >= EXTERNAL_S:
        patience_s = math.inf
    if patience_s > told.suspicion.ago_s:
        slow = next(one for one in waited_for if _does(one, on_gpu=on_gpu) is most)
        does = "waits" if most in QUIET else "works"
        section = _section(pages.get(slow.rank))
        return told(
            Judgement.SLOW, f"No step: rank {slow.rank} {does} {place_of(slow)}{section}", 0.7
        )
    return told(Judgement.HANG, summary, sure)


def _still_in_it(suspicion: HangSuspected, pages: Mapping[int, WorkerReport]) -> bool:
    """Whether the step that takes too long is under way, and nobody is in a section."""
    if not suspicion.reported:  # what is printed may begin again, and is of some ranks only
        seen = [page.optimizer_steps or page.printed_step for page in pages.values()]
        return suspicion.counted in seen
    steps = [page.progress.step for page in pages.values() if page.progress.step is not None]
    there = suspicion.step is None or min(steps, default=suspicion.step) <= suspicion.step
    return there and not any(page.section for page in pages.values())


def _stillness_s(
    suspects: Sequence[SeenRank], looks: Sequence[SeenRank], finding: CollectiveFinding | None
) -> float:
    """How long to wait for ranks that stand where they are."""
    if any(map(_is_outside, suspects or looks)):
        return EXTERNAL_S
    if len(looks) == 1:
        return EXTERNAL_S  # nobody waits for it: it may be meant
    if finding is not None and finding.story in (Story.MISMATCH, Story.ORDER):
        return 0.0  # it cannot go on
    return TOGETHER_S if len({look.group.frames for look in looks}) == 1 else 0.0


def _is_outside(look: SeenRank) -> bool:
    sleeps_in = look.group.sleeps_in
    outside = bool(sleeps_in) and not sleeps_in.startswith(AMONG_THREADS)
    return _stand_in(look.group.frames, EXTERNAL) or (outside and not _waits_in_torch(look))


def _waits_in_torch(look: SeenRank) -> bool:
    """For other ranks, or for a store: on sockets that no other program serves."""
    return look.waits or _stand_in(look.group.frames[-1:], ("torch/distributed/",))


@lru_cache(1024)  # asked for each of many ranks that stand alike
def _stand_in(frames: tuple[str, ...], files: tuple[str, ...]) -> bool:
    return any(frame.partition(" (")[2].startswith(files) for frame in frames)


def _patience_s(most: Activity, suspicion: HangSuspected, still_s: float) -> float:
    """How long somebody who does this is waited for; `still_s` where it stands still."""
    match most:
        case Activity.MOVES | Activity.UNKNOWN:
            return float("inf")
        case Activity.BUSY:
            return max(SPIN_S, SPIN_STEPS * suspicion.step_s)
        case Activity.BACKGROUND if not suspicion.trained:
            return float("inf")  # it may load something
        case _:
            return still_s


def _activity(look: SeenRank) -> Activity:
    """Who waits in the kernel for a disk or a file system does something."""
    group = look.group
    works = group.state in IN_KERNEL or group.sleeps_in.startswith(FILE_SYSTEMS)
    return Activity.BUSY if group.activity in QUIET and works else group.activity


def _are_on_gpus(waited_for: Sequence[SeenRank], finding: CollectiveFinding | None) -> bool:
    """Whether GPUs work for those who are waited for. A collective keeps a GPU busy for as long as
    it waits: so that tells nothing of who has entered what the others wait in."""
    named = {look.rank for look in waited_for}
    late = finding is None or (finding.story is Story.MISSING and named.issubset(finding.ranks))
    return bool(named) and late and all(look.uses_gpu for look in waited_for)


def _does(look: SeenRank, *, on_gpu: bool) -> Activity:
    """With what its GPU does."""
    does = _activity(look)
    return Activity.BUSY if on_gpu and does in QUIET else does


def _liveliness(activity: Activity) -> int:
    return list(Activity).index(activity) if activity else len(Activity)


def suspects_among(
    looks: Sequence[SeenRank], pages: Mapping[int, WorkerReport], finding: CollectiveFinding | None
) -> list[SeenRank]:
    """Whom the others wait for, or nobody where all do the same."""
    blamed = finding.ranks if finding is not None else ()
    if named := [look for look in looks if look.rank in blamed]:
        return named
    free = [look for look in looks if not look.waits]
    if 0 < 2 * len(free) <= len(looks):
        return free
    seen = {look.rank for look in looks}
    known = {rank: page for rank, page in pages.items() if rank in seen}
    for ranks in (behind(known), _smallest(looks)):
        if ranks and 2 * len(ranks) < len(looks):
            return [look for look in looks if look.rank in ranks]
    return []


def _smallest(looks: Sequence[SeenRank]) -> Set[int]:
    """The ranks that are not where most are."""
    places: dict[tuple[str, ...], set[int]] = {}
    for look in looks:
        places.setdefault(look.group.frames, set()).add(look.rank)
    most = max(places.values(), key=len, default=set())
    return {look.rank for look in looks} - most


@lru_cache(KNOWN_MAX)
def _end_in_a_wait(frames: tuple[str, ...]) -> bool:
    inner = next((n for n in reversed(range(len(frames))) if _is_wait(frames[n])), None)
    return inner is not None and all(map(_is_library, frames[inner:]))


def _is_wait(frame: str) -> bool:
    name, _, place = frame.partition(" (")
    function = name.rpartition(".")[2]
    return (function in WAITS and place.startswith(WAITING_FILES)) or place.startswith(OUR_WAITS)


def paused_by(looks: Sequence[SeenRank], *, all_live: bool = True) -> str:
    """Why nothing is to be done about it; empty if nobody wants it so."""
    if looks and all_live and all(look.group.state in STOPPED for look in looks):
        return "Paused: all workers are stopped by a signal (SIGSTOP)"
    for look in looks:
        if look.group.state in TRACED or _are_debugged(look.group.frames):
            return f"Paused: rank {look.rank} is being debugged"
    return ""


@lru_cache(KNOWN_MAX)
def _are_debugged(frames: tuple[str, ...]) -> bool:
    return any(map(_is_debugger, frames))


def _is_debugger(frame: str) -> bool:
    place = frame.partition(" (")[2]
    return place.startswith(DEBUGGERS) or any(f"/{name}" in place for name in DEBUGGERS)


def _unseen(told: HangTold, missing: Sequence[str], *, late: bool) -> HangJudged:
    """Nobody is blamed: it may be somebody who was not seen."""
    who = f"node {missing[0]} did not answer" if missing else "a worker has just ended"
    if late:
        return told(Judgement.HANG, f"The workers hung: {who}", 0.4)
    return told(Judgement.UNKNOWN, f"No step: {who}", 0.3)


def story_of(
    suspects: Sequence[SeenRank],
    others: Sequence[SeenRank],
    pages: Mapping[int, WorkerReport],
    finding: CollectiveFinding | None,
) -> str:
    """Who hung and where, and what the others did meanwhile."""
    if finding is not None and finding.story is not Story.MISSING:
        who = ranks_named([look.rank for look in suspects]) if finding.blames else "All ranks"
        return f"{who} hung: {finding.text}"
    if not suspects:
        places = {look.group.frames: look for look in reversed(others)}
        told = [f"rank {look.rank} {place_of(look)}" for look in reversed(places.values())]
        return f"All ranks hung: {'; '.join(told[:PLACES_SHOWN])}"
    page = pages.get(suspects[0].rank)
    doing = DOING.get(page.phase, "") if page is not None else ""
    seen = suspects[0].group.frames or (suspects[0].group.sleeps_in and not doing)
    where = place_of(suspects[0]) if seen else doing or "its stack is unknown"
    where += _section(page)
    waiting = f", while {_counted(others)} {place_of(others[0])}" if others else ""
    return f"{ranks_named([look.rank for look in suspects])} hung: {where}{waiting}"


def _section(page: WorkerReport | None) -> str:
    return f' in section "{page.section}"' if page is not None and page.section else ""


def place_of(look: SeenRank) -> str:
    """The innermost frame of the script, and where that leads."""
    frames = look.group.frames
    if not frames:
        place = f"in {look.group.sleeps_in} of the kernel" if look.group.sleeps_in else ""
        why = f" ({look.group.why})" if look.group.why else ""
        return f"{place or 'at an unknown location'}{why}"
    own = next((frame for frame in reversed(frames) if not _is_library(frame)), frames[-1])
    if look.waits:
        inner = next(frame for frame in reversed(frames) if _is_wait(frame))
        return f"in {inner.partition(' (')[0]}, called by {own}"
    return f"in {own}" if own == frames[-1] else f"in {frames[-1]}, called by {own}"


def _is_library(frame: str) -> bool:
    place = frame.partition(" (")[2]
    return place.startswith(("torch/", "holdfast/", "<frozen", "threading.py", "contextlib.py"))


def ranks_named(ranks: Sequence[int]) -> str:
    """At the beginning of a sentence."""
    return f"Rank{'s' if len(ranks) > 1 else ''} {in_words(in_rows(ranks))}"


def _counted(looks: Sequence[SeenRank]) -> str:
    who = f"rank {looks[0].rank}" if len(looks) == 1 else f"{len(looks)} ranks"
    return f"{who} {_was(looks)}"


def _was(looks: Sequence[SeenRank]) -> str:
    return "was" if len(looks) == 1 else "were"


def _line(group: StackGroup) -> str:
    """One place, and who stood there."""
    ranks: Iterable[int] = each_of(group.ranks)
    who = ranks_named(list(ranks)).lower()
    state = f"{group.state} in {group.sleeps_in}" if group.sleeps_in else group.state
    gpu = "its GPU busy" if group.gpu_busy else ""
    did = ", ".join(filter(None, (state, group.activity.value, gpu)))
    frames = " < ".join(reversed(group.frames[-FRAMES_SHOWN:])) or group.why or "no stack"
    return f"{who} ({did}): {frames}"
