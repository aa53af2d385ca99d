"""A scenario: the job, its cluster, what fails and how long everything takes.

Read from YAML, a shipped name or a path, with single numbers overridden by `key=value`; all
problems are reported in one pass, by their paths. Each default says where it is from. Nothing here
is drawn at random: a scenario and a seed together make a world.
"""

import difflib
import functools
import os
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from holdfast.controller.policies.replace import REPLACE_AFTER
from holdfast.errors import Error, clipped, shown
from holdfast.spec import reading
from holdfast.spec.load import dotted, unfit
from holdfast.spec.section import Numeric, Whole

PROBLEMS_MAX = 20  # that are told; the others are counted
LINE_MAX = 240
BRANCH = re.compile(r"float|int|constrained-(int|float)|literal.*|.*\[.*\].*")  # pydantic's words
DATA = resources.files("holdfast.simulation") / "data"

Seconds = Annotated[float, Field(ge=0, le=31_536_000, allow_inf_nan=False), Numeric]
Interval = Annotated[float, Field(gt=0, le=31_536_000, allow_inf_nan=False), Numeric]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), Numeric]
Rate = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False), Numeric]


class ScenarioSection(BaseModel):
    """Strict and frozen: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Cause(ScenarioSection):
    """One kind of fault in a mix."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False), Numeric]
    """Its share of all faults, relative to the others."""
    shows: Literal["worker", "device", "node", "hang"]
    """A worker dies; it dies of its device; the node is gone; or nothing moves any more."""
    stays: Share = 0.0
    """Probability that a device fault comes back at the next attempt on the same node."""
    detection_s: Seconds | Literal["measured"]
    """From the fault until the controller hears of it. `measured`: one of the delays that were
    measured for what shows like it (data/detection.yaml)."""
    measured_as: Literal["", "straggler", "corruption", "network"] = ""
    """Whose delays were measured for it; else those of what it shows."""


class Storms(ScenarioSection):
    """Losses of many nodes at once that follow no rack: reclaims of a spot market."""

    per_day: Rate = 0.0
    """Storms a day."""
    share: tuple[Share, Share] = (0.0, 0.0)
    """Smallest and largest probability with which a storm takes a node."""
    detection_s: Seconds = 1.0
    """From the loss until the controller hears of it."""
    away_s: Interval = 1800.0
    """Mean time until the lost capacity is offered again."""


class Detection(ScenarioSection):
    """How long it was measured to take until a fault is seen."""

    source: str
    """How that was measured."""
    assumed: str
    """What the measurement does not say."""
    steps: dict[str, Rate]
    """Steps of the job that it takes at least, where they are longer."""
    seconds: dict[str, tuple[Seconds, ...]]
    """Delays by what a fault shows, in order."""


class Mix(ScenarioSection):
    """What fails and how often."""

    source: str
    """Where the numbers are from."""
    assumed: str
    """What the source does not say."""
    rate_per_1000_node_days: Rate
    """Faults per 1,000 nodes and day."""
    causes: dict[str, Cause] = Field(min_length=1)
    """The kinds of faults."""
    storms: Storms = Storms()
    """Correlated reclaims."""


class ClusterLayout(ScenarioSection, title="Cluster"):
    """Where the nodes stand."""

    gpus_per_node: Whole = Field(default=8, ge=1, le=1024)
    """Workers of a node."""
    nodes_per_rack: Whole = Field(default=4, ge=1, le=10_000)
    """Nodes that lose power together. Assumed: four 8-GPU machines fill a rack's power."""
    racks_per_switch: Whole = Field(default=16, ge=1, le=10_000)
    """Racks that lose the network together. Assumed."""
    rack_losses_per_1000_days: Rate = 0.05
    """Losses of a whole rack per 1,000 rack-days. Assumed: one in 55 rack-years."""
    switch_losses_per_1000_days: Rate = 0.05
    """Losses of all racks of a switch per 1,000 switch-days. Assumed."""
    group_detection_s: Seconds = 60.0
    """Detection of both. Source: ByteRobust, switch."""
    free_nodes: Whole | None = Field(default=None, ge=0, le=1_000_000)
    """Healthy nodes beside the job that the engine can give. Default: 2 %, at least 8."""
    repair_s: Interval = 86_400.0
    """Mean time until a broken node is free again. Assumed: a day."""


class Failures(ScenarioSection):
    """What fails."""

    mix: str = "llama3"
    """Name of a shipped mix, or path of a file, relative to that of the scenario."""
    rate_per_1000_node_days: Rate | None = None
    """Replaces the rate of the mix."""


class Times(ScenarioSection):
    """How long the steps of a recovery take.

    The default start and rendezvous follow ByteRobust's hot updates of 46, 51, 54 and 65 s at 128
    to 1,024 machines (44 s and 20 s per 1,000 nodes; published for 8,192 GPUs at most, beyond it is
    extrapolation). Our own restart takes 0.3 to 0.7 s, but between two processes of one machine
    (benchmarks/restart.py), which says little about a cluster.
    """

    detection_s: Seconds | None = None
    """Replaces the time of detection of every cause."""
    teardown_s: Seconds = 5.0
    """From the order to stop until no worker is left. Grace of 2 s and a margin."""
    start_s: Seconds = 25.0
    """Until every rank has called join(), from warm workers."""
    rendezvous_s: Seconds = 5.0
    """Until every rank is in the process group, for few nodes."""
    rendezvous_s_per_1000_nodes: Seconds = 20.0
    """More of it for each 1,000 nodes."""
    first_step_s: Seconds = 10.0
    """What the first step of an attempt takes longer than others."""
    schedule_s: Seconds = 60.0
    """Until the engine has placed a new node. Assumed."""
    image_s: Seconds = 240.0
    """Until the image is pulled and the agent runs. Assumed; ByteRobust's requeue takes 454 s."""
    warm_s: Seconds = 60.0
    """Until a new node has warm workers. Assumed."""


class Checkpoint(ScenarioSection):
    """Snapshots in the memory of the node and of a peer."""

    interval_s: Interval | Literal["auto"] = "auto"
    """Training time between two. `auto`: policies/interval.py, which mostly means every step."""
    save_s: Seconds = 0.04
    """What one blocks training. Source: ByteRobust, 0.01 to 0.04 s at every step."""
    copy_s: Seconds = 5.0
    """From its end until the peer has its copy. Assumed."""
    restore_s: Seconds = 2.0
    """Restoring from the node's own memory. Assumed."""
    restore_peer_s: Seconds = 10.0
    """Restoring when a node's share comes from its peer. Assumed."""
    peer_distance: Whole | None = Field(default=None, ge=1, le=100_000)
    """The peer of node rank r is r + this. Default: nodes_per_rack, so in another rack."""


class Remote(ScenarioSection):
    """Checkpoints in shared storage, for losses that take a node and its peer."""

    interval_s: Interval = 1800.0
    """Training time between two. Assumed."""
    save_s: Seconds = 0.0
    """What one blocks training: nothing where the agent writes it from memory."""
    upload_s: Seconds = 300.0
    """From its end until it is committed. Assumed."""
    restore_s: Seconds = 180.0
    """Reading it back on all nodes. Assumed."""


class Policy(ScenarioSection):
    """Settings of the controller."""

    replace_after: Whole = Field(default=REPLACE_AFTER, ge=0, le=100)
    """Device faults after which a node is replaced; 0 is never."""
    max_restarts: Whole = Field(default=20, ge=0, le=1_000_000)
    """Restarts allowed within `window_s`. The default of a job."""
    window_s: Interval = 3600.0
    """The window of `max_restarts`."""
    node_wait_s: Interval = 604_800.0
    """How long the job waits for missing nodes before it gives up. A job's own default of 600 s
    suits a laptop, not a cluster whose nodes are repaired."""


class ReplicaWays(ScenarioSection, title="Replicas"):
    """`recovery.mode: replicas`: a replica that fails does not stop the others, which go on with a
    smaller batch until it is back. Without `nodes_each` a fault restarts the whole job."""

    nodes_each: Whole = Field(default=0, ge=0, le=100_000)
    """Nodes of a replica; 0: there are none. The nodes of the job are a multiple of it."""
    least: Share = 0.5
    """Share of the replicas below which nothing is trained."""
    kept: bool = True
    """Workers that live keep their processes. Today that is so with DDP on gloo; with sharded
    models, or NCCL, they are replaced by warm ones (docs/guides/replicas.md)."""
    park_steps: Rate = 0.5
    """Steps that a kept worker takes to leave the one that was interrupted. Measured: 0.2 s of
    steps of 0.4 s (docs/measurements/recovery-2026-11-26.md)."""


class Stock(ScenarioSection):
    """The stock way, for `--compare torchrun`: a failed job is queued again as a whole.

    In its favour nobody is short of nodes and a broken node is never scheduled again.
    """

    detection_s: Seconds = 30.0
    """From a crash until all processes have ended. Assumed."""
    hang_timeout_s: Seconds = 1800.0
    """Timeout of a collective. Source: default of torch.distributed's gloo; NCCL's is 600 s."""
    requeue_s: Seconds = 441.0
    """From the end of the job until its workers run again, for few nodes. Source: straight line
    through ByteRobust's 454, 545, 635, 768 s at 128, 256, 512, 1,024 machines."""
    requeue_s_per_1000_nodes: Seconds = 332.0
    """More of it per 1,000 nodes. Source: the slope of that line; beyond, it is extrapolation."""
    interval_s: Interval | Literal["auto"] = "auto"
    """Training time between two checkpoints. `auto`: Young's optimum, which flatters it."""
    save_s: Seconds = 10.0
    """What one blocks training. Source: ByteRobust on Megatron's save, 6.77 to 13.02 s."""
    restore_s: Seconds = 180.0
    """Reading it back on all nodes. As `remote.restore_s`."""


class Loss(ScenarioSection):
    """Nodes that are lost at a set time, for drills."""

    at_h: Annotated[float, Field(ge=0, allow_inf_nan=False), Numeric]
    """Hours after the start."""
    nodes: Whole = Field(ge=1)
    """How many are lost at once, the lowest node ranks first."""


class Scenario(ScenarioSection):
    """One capacity question."""

    name: str
    """What results are headed with."""
    about: str = ""
    """One sentence, with the source of the job's numbers."""
    nodes: Whole = Field(ge=1, le=100_000)
    """Nodes that train."""
    spares: Annotated[Whole, Field(ge=0, le=10_000)] | Literal["auto"] = "auto"
    """Warm standby nodes. `auto`: by spec/spares.py, for the time until the engine
    gives a new node or, as far as free nodes do not suffice, until one is repaired."""
    days: Annotated[float, Field(gt=0, le=3650, allow_inf_nan=False), Numeric] = 30.0
    """Length of one world."""
    seeds: Whole = Field(default=10, ge=1, le=100_000)
    """Worlds to run."""
    step_s: Interval = 10.0
    """Length of a training step."""
    cluster: ClusterLayout = ClusterLayout()
    failures: Failures = Failures()
    times: Times = Times()
    checkpoint: Checkpoint = Checkpoint()
    remote: Remote = Remote()
    policy: Policy = Policy()
    replicas: ReplicaWays = ReplicaWays()
    stock: Stock = Stock()
    losses: tuple[Loss, ...] = ()
    """Drills: losses at set times, on top of what fails by chance."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for loss in self.losses:
            if loss.nodes > self.nodes:
                raise ValueError(f"{loss.nodes} nodes are to be lost, but only {self.nodes} train")
        each = self.replicas.nodes_each
        if each and self.nodes % each:
            raise ValueError(f"{self.nodes} nodes are not whole replicas of {each}")
        return self


Model = TypeVar("Model", bound=BaseModel)


def shipped() -> list[str]:
    """Names of the scenarios that come with Holdfast."""
    folder = DATA / "scenarios"
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name[0] != "_")


def load(name: str, settings: Iterable[str] = ()) -> tuple[Scenario, Mix]:
    """A shipped scenario or that of a file, overridden by `key=value`s, with its failure mix.

    Raises `Error` scenario-not-found, scenario-unreadable or scenario-invalid.
    """
    raw, folder = read(name)
    return build(raw, settings, where=name, folder=folder)


def build(
    raw: Mapping[str, Any], settings: Iterable[str] = (), *, where: str, folder: Path | None = None
) -> tuple[Scenario, Mix]:
    """As `load`, from data that was read before; paths of mixes are relative to `folder`."""
    data = overridden(raw, settings)
    scenario = _validated(Scenario, data, where)
    return scenario, _mix(scenario.failures.mix, folder)


def read(name: str) -> tuple[dict[str, Any], Path | None]:
    """The data of a scenario, not checked yet, and the folder of its file."""
    if name in shipped():
        return _mapping((DATA / "scenarios" / f"{name}.yaml").read_text(), name), None
    path = Path(name)
    if not os.path.exists(path) and path.suffix not in (".yaml", ".yml", ".json"):
        raise Error(
            "scenario-not-found",
            f"there is no scenario {name}",
            why="it is neither a file nor one of those that are shipped",
            help=_meant(name, shipped()) or f"shipped are {', '.join(shipped())}",
        )
    return _mapping(_text(path), name), path.parent


def overridden(raw: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """The data with each `a.b=value` put in its place; values are read as YAML."""
    data: dict[str, Any] = {k: dict(v) if isinstance(v, dict) else v for k, v in raw.items()}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise _bad_setting(setting)
        *sections, last = key.strip().split(".")
        place = data
        for section in sections:
            inner = place.setdefault(section, {})
            if not isinstance(inner, dict):
                raise _bad_setting(setting)
            place = inner
        place[last] = _setting(setting, text)
    return data


def _setting(setting: str, text: str) -> Any:
    try:
        read = next(reading.documents(text), None)
    except reading.UnreadableError as exc:
        raise _bad_setting(setting, str(exc)) from None
    if read is not None and read.problems:
        raise _bad_setting(setting, read.problems[0].what)
    return read and read.data


def _mix(name: str, folder: Path | None) -> Mix:
    mixes = {mix.name: mix for mix in (DATA / "mixes").iterdir()}
    if f"{name}.yaml" in mixes:
        text = mixes[f"{name}.yaml"].read_text()
    else:
        text = _text((folder or Path()) / name)
    return _validated(Mix, _mapping(text, name), f"failure mix {name}")


@functools.cache
def measured() -> Detection:
    """The delays that are shipped."""
    text = (DATA / "detection.yaml").read_text()
    return _validated(Detection, _mapping(text, "detection"), "detection")


def _text(path: Path) -> str:
    try:
        return reading.file_text(path)
    except reading.UnreadableError as exc:
        raise _unreadable(path, str(exc)) from None


def _mapping(text: str, where: str) -> dict[str, Any]:
    try:
        data, lines, problems = reading.mapping(text)
    except reading.UnreadableError as exc:
        raise _unreadable(where, str(exc)) from None
    problems = [*problems, *unfit(data)]
    if problems:
        told = [f"{dotted(p.place)} (line {lines.get(p.place, 1)}): {p.what}" for p in problems]
        raise _invalid(where, told)
    found: dict[str, Any] = data
    return found


# ── problems in plain words ───────────────────────────────────────────────────────────────────


def _validated(model: type[Model], data: dict[str, Any], where: str) -> Model:
    try:
        return model.model_validate(data)
    except ValidationError as exc:
        errors = exc.errors(include_url=False)
        told = _merged(_problem(found, model) for found in errors[:PROBLEMS_MAX])
        raise _invalid(where, told, len(errors) - len(errors[:PROBLEMS_MAX])) from None


def _invalid(where: str, told: list[str], more: int = 0) -> Error:
    count = len(told) + more
    shown_here = [clipped(line, LINE_MAX) for line in told[:PROBLEMS_MAX]]
    if count > len(shown_here):
        shown_here.append(f"and {count - len(shown_here):,} more")
    return Error(
        "scenario-invalid",
        f"{where}: {count:,} problem{'s' if count > 1 else ''}",
        why="\n    ".join(shown_here if count == 1 else ["", *shown_here]),
        help="docs/reference/scenario.md lists every key of a scenario; nothing was run",
    )


def _merged(problems: Iterable[tuple[str, str, str]]) -> list[str]:
    """One line for each path: the branches of a choice are joined by "or"."""
    lines: dict[tuple[str, str], list[str]] = {}
    for path, said, given in problems:
        lines.setdefault((path, given), []).append(said)
    return [
        f"{path}: {' or '.join(dict.fromkeys(said))}{given}"
        for (path, given), said in lines.items()
    ]


def _problem(found: ErrorDetails, model: type[BaseModel]) -> tuple[str, str, str]:
    """Where, what, and what was given instead."""
    place = [str(step) for step in found["loc"] if not BRANCH.fullmatch(str(step))]
    path = ".".join(place) or "scenario"
    if found["type"] == "extra_forbidden":
        keys = keys_of(model, place[:-1])
        hint = _meant(place[-1][:LINE_MAX], keys) or "known here: " + ", ".join(keys)
        return path, f"unknown key; {hint}", ""
    if found["type"] == "missing":
        return path, "is required", ""
    said = found["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return path, said, f", not {shown(found['input'])}" if place else ""


def keys_of(model: type[BaseModel], place: list[str]) -> list[str]:
    """The keys that are accepted in the section at `place`."""
    for step in place:
        field = model.model_fields.get(step)
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)


def _meant(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else ""


def _unreadable(where: Path | str, why: str) -> Error:
    return Error(
        "scenario-unreadable",
        f"cannot read {where}",
        why=why,
        help=f"holdfast simulate {shipped()[0]}   (one that is shipped)",
    )


def _bad_setting(
    setting: str, why: str = "a setting is the path of one number and its value"
) -> Error:
    return Error(
        "usage",
        f"{shown(setting)} is not a setting",
        why=why,
        help="for example --set times.detection_s=2",
    )
