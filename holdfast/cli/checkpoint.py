"""`holdfast checkpoint`: what can be gone back to, whether it is sound, and to take it elsewhere.

Checkpoints are looked at where they lie, without the job: from its description its tiers are known,
and with `--at` any folder or URL will do, also one of a job on another machine or in a cluster.
"""

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, count, json_result, result, table, talk
from holdfast.cli.output import duration as length_of_time
from holdfast.errors import Error, ExitStatus

if TYPE_CHECKING:
    from holdfast.checkpoint.catalog import Catalog, Damage, Opened
    from holdfast.checkpoint.key import Key
    from holdfast.checkpoint.manifest import Manifest, SavedLeaf
    from holdfast.checkpoint.stores import CheckpointStore

HEADER = ("STEP", "ATTEMPT", "RANKS", "SIZE", "WRITTEN", "AGE", "NAME", "STATE")
LEAVES = ("PART", "LEAF", "TYPE", "SHAPE", "SIZE", "PIECES")
NAME_CHARS = 60

checkpoint = typer.Typer(
    help="List, check, copy, export and remove durable checkpoints.",
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class TierName(StrEnum):
    """The durable tiers of a job."""

    LOCAL = "local"
    SHARED = "shared"
    ARCHIVE = "archive"


class Form(StrEnum):
    """What a checkpoint can be exported to."""

    TORCH = "torch"
    DCP = "dcp"
    SAFETENSORS = "safetensors"
    ORBAX = "orbax"


At = Annotated[
    str | None,
    typer.Option("--at", metavar="LOCATION", help="A folder or URL instead of a job's tiers."),
]
Tier = Annotated[
    TierName | None, typer.Option("--tier", help="Only this tier of the job.", show_default=False)
]
Step = Annotated[
    int | None, typer.Option("--step", min=0, help="Step of the checkpoint. Default: the newest.")
]
Attempt = Annotated[
    int | None, typer.Option("--attempt", min=0, help="Attempt that saved the checkpoint.")
]
To = Annotated[str, typer.Option("--to", metavar="LOCATION", help="Folder or URL to write to.")]


@checkpoint.command("list")
def list_checkpoints(
    name: JobName = None, at: At = None, tier: Tier = None, as_json: AsJson = False
) -> None:
    """List the committed checkpoints, newest first."""
    from holdfast.checkpoint.catalog import survey

    places = _stores(name, at, tier)
    found = [(which, store, survey(store)) for which, store in places]
    if as_json:
        json_result([_survey_fields(*one) for one in found])
        return
    for which, store, seen in found:
        _show_survey(which, store, seen)


@checkpoint.command("show")
def show(
    name: JobName = None,
    step: Step = None,
    attempt: Attempt = None,
    at: At = None,
    tier: Tier = None,
    as_json: AsJson = False,
) -> None:
    """Show the contents of a checkpoint."""
    from holdfast.checkpoint.catalog import open_checkpoint

    store, key = _one(name, at, tier, step, attempt)
    opened = open_checkpoint(store, key)
    if as_json:
        json_result({**_fields(opened.manifest), "place": store.where, "leaves": _leaves(opened)})
        return
    result(_headline(opened, store))
    rows = _leaves(opened)
    result(table(LEAVES, (_leaf_row(row) for row in rows)))


@checkpoint.command("verify")
def verify(
    name: JobName = None,
    step: Annotated[int | None, typer.Option("--step", min=0, help="Only this step.")] = None,
    at: At = None,
    tier: Tier = None,
    as_json: AsJson = False,
) -> None:
    """Read every byte of the committed checkpoints; exit status 1 if one is damaged."""
    from holdfast.checkpoint.catalog import survey
    from holdfast.checkpoint.catalog import verify as verified

    damages: list[Damage] = []
    unreadable: list[Damage] = []
    checked = skipped = 0
    for which, store in _stores(name, at, tier):
        seen = survey(store)
        damages += seen.damaged if step is None else ()
        unreadable += seen.unreadable if step is None else ()
        for manifest in (one for one in seen.committed if step in (None, one.step)):
            found = verified(store, manifest.key)
            damages += found
            checked += 1
            _tell(which, manifest, found)
        skipped += sum(step in (None, one.step) for one in seen.void)
    if skipped:
        talk(f"not verified: {count(skipped, 'void checkpoint')}, superseded by later attempts")
    _require_some(checked or len(damages) + len(unreadable), step)
    lines = [*map(_damage_line, damages), *map(_unreadable_line, unreadable)]
    if as_json:
        counts = {"checked": checked, "void": skipped}
        json_result({**counts, "damaged": damages, "unreadable": unreadable})
    else:
        result("\n".join(lines) or f"intact: {count(checked, 'checkpoint')}")
    if lines:
        raise typer.Exit(ExitStatus.JOB_FAILED)


@checkpoint.command("prune")
def prune(
    name: JobName = None,
    keep: Annotated[
        int, typer.Option("--keep", min=1, help="Number of newest checkpoints to keep.")
    ] = 3,
    void: Annotated[
        bool,
        typer.Option(
            "--void", help="Also remove void checkpoints, which later attempts have superseded."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be removed.")
    ] = False,
    at: At = None,
    tier: Tier = None,
    as_json: AsJson = False,
) -> None:
    """Remove checkpoints, except for the newest, some older ones, and those with a name."""
    from holdfast.checkpoint.upkeep import prune as pruned

    told = []
    for which, store in _stores(name, at, tier):
        gone = pruned(store, newest=keep, void=void, dry_run=dry_run)
        keys = [{**one.key._asdict(), "why": one.why} for one in gone.checkpoints]
        told.append({"tier": which, "place": store.where, "removed": keys, "files": gone.files})
        if not as_json:
            done = "would remove" if dry_run else "removed"
            for line in gone.words or ["nothing"]:
                result(f"{which} {store.where}: {done} {line}".strip())
    if as_json:
        json_result(told)


@checkpoint.command("copy")
def copy(
    to: To,
    name: JobName = None,
    step: Step = None,
    attempt: Attempt = None,
    called: Annotated[
        str | None,
        typer.Option("--name", help="Name of the copy; checkpoints with a name are never pruned."),
    ] = None,
    at: At = None,
    tier: Tier = None,
    as_json: AsJson = False,
) -> None:
    """Copy a checkpoint to another location, verified and self-contained."""
    from holdfast.checkpoint.open_store import open_store
    from holdfast.checkpoint.upkeep import copy as copied

    store, key = _one(name, at, tier, step, attempt)
    made = copied(store, key, open_store(to), now=time.time(), name=called)
    if as_json:
        json_result({**_fields(made), "place": to})
    else:
        result(f"step {made.step} of attempt {made.attempt}, {_size(made.bytes)}, is in {to}")


@checkpoint.command("export")
def export(
    to: To,
    name: JobName = None,
    form: Annotated[Form, typer.Option("--form", help="Output format.")] = Form.SAFETENSORS,
    sharded: Annotated[bool, typer.Option("--sharded", help="Write several files.")] = False,
    step: Step = None,
    attempt: Attempt = None,
    at: At = None,
    tier: Tier = None,
    as_json: AsJson = False,
) -> None:
    """Export a checkpoint to a format that other programs read. Needs torch."""
    from importlib import import_module  # by name: the rest of the command line knows no torch

    from holdfast.checkpoint.catalog import open_checkpoint

    try:
        exporter = import_module("holdfast.checkpoint.export").export
    except ImportError as error:
        raise _unavailable(error) from error
    store, key = _one(name, at, tier, step, attempt)
    exporter(open_checkpoint(store, key), to, form.value, sharded)
    if as_json:
        json_result({"step": key.step, "attempt": key.attempt, "form": form, "to": to})
    else:
        result(f"step {key.step} of attempt {key.attempt} is in {to} as {form.value}")


# ── where ─────────────────────────────────────────────────────────────────────────────────────


def _stores(
    name: str | None, at: str | None, tier: TierName | None
) -> "list[tuple[str, CheckpointStore]]":
    """The places that are meant, the quickest tier first."""
    from holdfast.checkpoint.open_store import open_store
    from holdfast.cli.places import tier_places

    if at is not None:
        if name is not None or tier is not None:
            raise _usage(
                "--at is mutually exclusive with NAME and --tier", "--at already names the location"
            )
        return [("", open_store(at))]
    folder = job_folder(name)
    places = [p for p in tier_places(folder) if tier is None or p.tier == tier.value]
    if not places:
        raise _usage(
            f"job {folder.name} has no {tier.value if tier else 'durable'} tier",
            "`checkpoints` in its job file does not configure it",
        )
    return [(place.tier, open_store(place.where, options=place.options)) for place in places]


def _one(
    name: str | None, at: str | None, tier: TierName | None, step: int | None, attempt: int | None
) -> "tuple[CheckpointStore, Key]":
    """The checkpoint that is meant: the newest that fits, from the quickest tier that has it."""
    from holdfast.checkpoint.catalog import survey
    from holdfast.checkpoint.key import newest_first

    stores = [store for _, store in _stores(name, at, tier)]
    found: dict[Key, CheckpointStore] = {}
    for store in stores:
        seen = survey(store)
        fitting = seen.committed if attempt is None else (*seen.committed, *seen.void)
        for one in fitting:
            if step in (None, one.step) and attempt in (None, one.attempt):
                found.setdefault(one.key, store)
    _require_some(len(found), step)
    key = newest_first(found)[0]
    return found[key], key


def _require_some(number: int, step: int | None) -> None:
    if number == 0:
        raise Error(
            "checkpoint-not-found",
            "there is no committed checkpoint" + ("" if step is None else f" of step {step}"),
            why="checkpoints that are being written, were interrupted, or are void do not count",
            help="holdfast checkpoint list",
        )


def _usage(what: str, why: str) -> Error:
    return Error("usage", what, why=why, help="holdfast checkpoint list --at LOCATION")


def _unavailable(error: ImportError) -> Error:
    return Error(
        "export-unavailable",
        "checkpoints cannot be exported here",
        why=f"{error.name or 'a module'} is not installed",
        help="pip install 'holdfast[train]'",
    )


# ── what is told ──────────────────────────────────────────────────────────────────────────────


def _show_survey(which: str, store: "CheckpointStore", seen: "Catalog") -> None:
    title = f"{which} {store.where}".strip()
    rows = [_row(one, "committed") for one in seen.committed]
    rows += [_row(one, "void") for one in seen.void]
    if rows:
        result(f"{title}\n{table(HEADER, rows)}")
    else:
        talk(f"{title}: no checkpoint has been committed")
    for damage in seen.damaged:
        result(_damage_line(damage))
    for one in seen.unreadable:
        result(_unreadable_line(one))


def _row(one: "Manifest", state: str) -> tuple[str, ...]:
    ranks = str(one.world_size) if one.whole else f"{len(one.parts)}/{one.world_size}"
    return (
        str(one.step),
        str(one.attempt),
        ranks,
        _size(one.bytes),
        _size(one.written_bytes),
        length_of_time(max(0.0, time.time() - one.created_at)),
        _plain(one.name),
        state,
    )


def _survey_fields(which: str, store: "CheckpointStore", seen: "Catalog") -> dict[str, object]:
    listed = [{**_fields(one), "state": "committed"} for one in seen.committed]
    listed += [{**_fields(one), "state": "void"} for one in seen.void]
    return {
        "tier": which or None,
        "place": store.where,
        "checkpoints": listed,
        "damaged": seen.damaged,
        "unreadable": seen.unreadable,
    }


def _fields(one: "Manifest") -> dict[str, object]:
    return {
        "job": one.job,
        "step": one.step,
        "attempt": one.attempt,
        "world_size": one.world_size,
        "ranks": one.ranks,
        "name": one.name,
        "created_at": one.created_at,
        "bytes": one.bytes,
        "written_bytes": one.written_bytes,
    }


def _headline(opened: "Opened", store: "CheckpointStore") -> str:
    one = opened.manifest
    named = f" {_plain(one.name)!r}" if one.name else ""
    ranks = count(one.world_size, "rank") if one.whole else f"ranks {list(one.ranks)}"
    older = f", {count(len(one.files), 'older file')} needed" if one.files else ""
    return (
        f"{_plain(one.job)}: step {one.step} of attempt {one.attempt}{named} in {store.where}\n"
        f"{ranks}, {_size(one.bytes)}, of which {_size(one.written_bytes)} new{older}"
    )


def _leaves(opened: "Opened") -> list[dict[str, object]]:
    """Each leaf once, with the bytes that all ranks together hold of it."""
    found: dict[tuple[str, str], list[SavedLeaf]] = {}
    for part in opened.parts.values():
        for kind, saved in part.parts.items():
            for leaf in saved.leaves:
                found.setdefault((kind, leaf.name), []).append(leaf)
    return [
        {
            "part": kind,
            "name": name,
            "dtype": pieces[0].dtype,
            "shape": pieces[0].whole or pieces[0].shape,
            "bytes": sum(piece.length for piece in pieces if piece.chunks is not None),
            "pieces": len(pieces),
        }
        for (kind, name), pieces in found.items()
    ]


def _leaf_row(row: dict[str, object]) -> tuple[str, ...]:
    shape = row["shape"]
    assert isinstance(shape, tuple)
    name, dtype = _plain(str(row["name"])), _plain(str(row["dtype"]))
    size = row["bytes"]
    assert isinstance(size, int)
    sides = "×".join(map(str, shape)) or "1"
    return (str(row["part"]), name, dtype, sides, _size(size), str(row["pieces"]))


def _tell(which: str, manifest: "Manifest", found: "list[Damage]") -> None:
    state = f"{count(len(found), 'damaged part')}" if found else "intact"
    talk(f"{which} step {manifest.step} of attempt {manifest.attempt}: {state}".strip())


def _damage_line(damage: "Damage") -> str:
    where = damage.file
    if damage.at is not None and damage.length is not None:
        where += f", bytes {damage.at} to {damage.at + damage.length}"
        what = "the index" if damage.leaf is None else _plain(damage.leaf)
        where += f", {what} of rank {damage.rank}"
    return f"damaged: {where}: {damage.why}"


def _unreadable_line(one: "Damage") -> str:
    return f"unreadable: {one.file}: {one.why}"


def _plain(text: str) -> str:
    """A name from a file, fit for a terminal."""
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= NAME_CHARS else f"...{shown[3 - NAME_CHARS :]}"


def _size(number: int) -> str:
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
