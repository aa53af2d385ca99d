"""`holdfast profile`: where the steps of running workers go, without a restart."""

import contextlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from holdfast.cli import question
from holdfast.cli.cluster import Context, Namespace, On, Reach, reached
from holdfast.cli.controller import Where
from holdfast.cli.output import AsJson, JobName, json_result, result, table, talk
from holdfast.cli.question import Answered, JobQuestion
from holdfast.errors import Error

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.api import Api
    from holdfast.profiles import ProfileReply, ProfileRequest, RankProfile
    from holdfast.spec import Job

SLOWEST = "slowest"
TOP_SHOWN = 8
NAME_SHOWN = 60


class _Traces:
    """Of a job in a cluster: `folder` for its traces on their way, why some have not come, by rank,
    and the names of ranks. `output` is where all are to go, if somebody has said so."""

    def __init__(self, folder: Path, output: Path | None) -> None:
        self.folder, self.output = folder, output
        self.stayed: dict[int, str] = {}
        self.job: Job | None = None


class _Found(NamedTuple):
    """What is told of a profile; `trace` is the file with all ranks, None where there is none."""

    job: str
    reply: "ProfileReply"
    trace: Path | None


def profile(
    name: JobName = None,
    steps: Annotated[int, typer.Option("--steps", help="Whole steps, 1 to 50.")] = 5,
    ranks: Annotated[
        str, typer.Option("--ranks", help="Comma-separated ranks; `slowest`: the slowest one.")
    ] = f"0,{SLOWEST}",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Where the merged trace goes (.json.gz). Default: into the job's folder; for a "
            "job in a cluster JOB-profile.json.gz, below HOLDFAST_HOME where the current folder "
            "is read-only.",
        ),
    ] = None,
    nsys: Annotated[
        bool, typer.Option("--nsys", help="Nsight Systems instead of Kineto; see its guide.")
    ] = False,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Profile some steps of running workers, and show where the time goes."""
    if nsys:
        raise _no_nsys(name)
    wish = _wish(steps, ranks)
    reach = reached(on, context, namespace)
    if output is not None:
        _require_place(output)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        traces = _Traces(Path(folder), output)
        told = _ask(wish, name, reach, traces)
        _require_any(told)
        merged = _merged(told, wish, traces)
    found = _Found(told.job, told.reply, merged if isinstance(merged, Path) else None)
    failed = merged if isinstance(merged, Error) else None
    if output is not None and merged is None:
        failed = _not_written(told, output)
    if not as_json:
        result("\n".join(_shown(found)))
    elif failed is None:  # an error is a JSON value, too, and there is one
        json_result(_as_json(found))
    for one in found.reply.ranks:
        if one.why:
            talk(f"no profile of rank {one.rank}: {one.why}")
        elif one.rank in traces.stayed:
            talk(f"no trace of rank {one.rank}: {traces.stayed[one.rank]}; while its pod has it:")
            talk(f"  {_fetch(told.job, one, reach)}")
    if failed is not None:
        raise failed


def _wish(steps: int, ranks: str) -> "ProfileRequest":
    import secrets

    from holdfast.profiles import RANKS_MAX, STEPS_MAX, ProfileRequest

    words = [word.strip() for word in ranks.split(",")]
    numbers = tuple(int(word) for word in words if re.fullmatch("[0-9]{1,7}", word))
    if others := [word for word in words if not re.fullmatch(f"[0-9]{{1,7}}|{SLOWEST}", word)]:
        raise _usage(f"--ranks {ranks}", f"{others[0]!r} is neither a rank nor `{SLOWEST}`")
    if len(numbers) > RANKS_MAX:
        raise _usage(f"--ranks {ranks}", f"at most {RANKS_MAX} ranks can be profiled at once")
    if not 1 <= steps <= STEPS_MAX:
        raise _usage(f"--steps {steps}", f"1 to {STEPS_MAX} steps can be profiled at once")
    return ProfileRequest(
        id=secrets.token_hex(8), steps=steps, ranks=numbers, slowest=SLOWEST in words
    )


def _usage(what: str, why: str) -> Error:
    return Error("usage", what, why=why, help="holdfast profile --steps 5 --ranks 0,slowest")


def _no_nsys(name: str | None) -> Error:
    there = shutil.which("nsys")
    found = f"{there} is installed, but" if there else "nsys is not on the PATH here, and"
    return Error(
        "nsys-unavailable",
        "Nsight Systems cannot be attached to running workers",
        why=f"{found} on Linux it records only processes that were started under it",
        help=f"holdfast profile{f' {name}' if name else ''}   (Kineto, which needs no restart)",
    )


def _require_place(output: Path) -> None:
    """That a file can be written there; before anything is profiled."""
    parent = output.resolve().parent
    if parent.is_dir() and os.access(parent, os.W_OK):
        return
    raise Error(
        "output-unwritable",
        f"no trace can be written to {parent}",
        why="you may not write there" if parent.is_dir() else "it is not a folder",
        help="name a file in a folder that exists: --output FILE.json.gz",
    )


def _ask(
    wish: "ProfileRequest", name: str | None, reach: Reach | None, traces: _Traces
) -> "Answered[ProfileReply]":
    def here(folder: Path) -> "ProfileReply":
        from holdfast.drivers import client

        return client.profile(folder, wish)

    async def there(cluster: "Api", job: str) -> "ProfileReply | None":
        from holdfast.drivers.kubernetes.fetched_traces import fetch
        from holdfast.drivers.kubernetes.published_stacks import ask_for_profile
        from holdfast.drivers.kubernetes.remote import look

        with contextlib.suppress(Error):  # a file of another version; only names come from it
            traces.job = (await look(cluster, job)).job
        reply = await ask_for_profile(cluster, job, wish)
        if reply is not None:
            traces.stayed = await fetch(cluster, job, reply.ranks, traces.folder)
        return reply

    why = "running workers are profiled, which the controller asks for"
    return question.ask(JobQuestion(there, why, question.what_happened), here, name, reach)


def _require_any(told: "Answered[ProfileReply]") -> None:
    reply, remedy = told.reply, question.what_happened(told.job, told.words)
    if reply.refused:
        raise Error(
            "profile-refused",
            f"no profile of {told.job} was started",
            why=reply.refused,
            help=remedy,
        )
    if all(one.why for one in reply.ranks):
        whys = "; ".join(f"rank {one.rank}: {one.why}" for one in reply.ranks)
        raise Error("profile-failed", f"no rank of {told.job} was profiled", why=whys, help=remedy)


def _merged(
    told: "Answered[ProfileReply]", wish: "ProfileRequest", traces: _Traces
) -> Path | Error | None:
    """The file with all traces, or why it cannot be written: the figures are told all the same."""
    from holdfast.cli.locate import job_folder
    from holdfast.drivers import profile_files, records

    if told.words:
        folder, job = traces.folder, traces.job
        place = _writable() / f"{told.job}-profile.json.gz"
    else:
        folder = job_folder(told.job)
        job, place = records.load_job(folder), folder / "profiles" / wish.id / "trace.json.gz"
    path = traces.output or place
    came = [one for one in told.reply.ranks if one.rank not in traces.stayed]
    try:
        ranks = profile_files.merged(folder, came, _labels(job, told.reply.world_size), path)
    except (OSError, ValueError, RecursionError) as error:
        return Error(
            "output-unwritable",
            f"the traces of {told.job} cannot be merged into {path}",
            why=str(error),
            help="name another file with --output",
        )
    return path if ranks else None


def _writable() -> Path:
    """The current folder, or one below HOLDFAST_HOME where nothing can be written to that."""
    from holdfast.drivers.records import jobs_home

    if os.access(".", os.W_OK):
        return Path()
    folder = jobs_home().parent / "profiles"
    with contextlib.suppress(OSError):  # writing into it tells why not
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _not_written(told: "Answered[ProfileReply]", output: Path) -> Error:
    return Error(
        "output-unwritable",
        f"--output {output} was not written",
        why="no trace could be fetched (see above)",
        help=f"holdfast profile {told.job}{told.words} --steps 1 --ranks 0   (a smaller one)",
    )


def _fetch(job: str, one: "RankProfile", reach: Reach | None) -> str:
    """The command that copies a trace out of a pod, of which we have no right to. kubectl knows
    none of our variables, so it is told the cluster whoever has named it."""
    path, given = f"$HOLDFAST_HOME/jobs/{job}/{one.trace}", reach or Reach(None, None)
    words = [*(("--context", given.context) if given.context else ())]
    words += [*(("--namespace", given.namespace) if given.namespace else ())]
    asks = shlex.join(["kubectl", *words, "exec", one.node])
    return f"{asks} -- sh -c 'cat {path}' > rank-{one.rank}.json.gz"


def _labels(job: "Job | None", size: int) -> Callable[[int], str]:
    """`rank 3 (pp 0, tp 1)`, by the layout that the job asks for."""

    def label(rank: int) -> str:
        try:
            place = job.parallel.layout.resolve(size).place(rank) if job and job.parallel else {}
        except ValueError:  # the job has another size now
            place = {}
        words = ", ".join(f"{name} {number}" for name, number in place.items())
        return f"rank {rank} ({words})" if words else f"rank {rank}"

    return label


def _shown(found: _Found) -> Iterator[str]:
    from holdfast.profiling.advice import advice, differences

    measured = [one for one in found.reply.ranks if not one.why]
    first = measured[0]
    last = first.first_step + first.steps - 1
    yield f"{found.job}: steps {first.first_step} to {last}, each on average"
    yield ""
    yield _parts(measured, found.reply.slowest)
    yield ""
    yield _top(first)
    for apart in differences(measured):
        yield (
            f"{apart.part}: {_ms(apart.most_s)} on rank {apart.most_rank}, "
            f"{_ms(apart.least_s)} on rank {apart.least_rank}"
        )
    yield ""
    for number, one in enumerate(advice(measured)):
        lead = "try first" if number == 0 else "then"
        where = f"rank {one.rank}, {one.share:.0%} of the step" if one.share else "all ranks"
        yield f"{lead}: {one.what} ({where}: {one.why})"
    if found.trace is not None:
        yield ""
        yield f"trace: {found.trace}   (open it in https://ui.perfetto.dev)"


def _parts(profiles: "Sequence[RankProfile]", slowest: int | None) -> str:
    from holdfast.profiles import PART_NAMES

    parts = ("COMPUTE", "EXPOSED COMM", "COPIES", "SNAPSHOTS", "DATA", "IDLE")
    rows = []
    for one in profiles:
        mark = " (slowest)" if one.rank == slowest else ""
        cells = [f"{_ms(getattr(one.parts, p))} {one.parts.share(p):.0%}" for p in PART_NAMES]
        hidden = "-" if one.overlap is None else f"{one.overlap:.0%}"
        rows.append((f"{one.rank}{mark}", one.node, _ms(one.parts.step_s), *cells, hidden))
    return table(("RANK", "NODE", "STEP", *parts, "OVERLAP"), rows)


def _top(one: "RankProfile") -> str:
    kind = "KERNEL" if one.device == "cuda" else "OPERATOR"
    total_s = one.parts.step_s * one.steps
    rows = [
        (
            f"{kernel.total_s / total_s:.0%}",
            _ms(kernel.total_s / one.steps),
            f"{kernel.count / one.steps:.3g}",
            kernel.part,
            kernel.name[:NAME_SHOWN],
        )
        for kernel in one.top[:TOP_SHOWN]
    ]
    return table(("SHARE", "A STEP", "CALLS", "PART", f"{kind} OF RANK {one.rank}"), rows)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _as_json(found: _Found) -> dict[str, object]:
    from holdfast.profiling.advice import advice, differences

    ranks = found.reply.ranks
    return {
        "job": found.job,
        "ranks": ranks,
        "slowest": found.reply.slowest,
        "differences": differences(ranks),
        "advice": advice(ranks),
        "trace": str(found.trace) if found.trace else None,
    }
