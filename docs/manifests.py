"""Manifests in the repository: deploy/examples and the snippets in the guides, by `make docs`.

An example is a recipe rendered for one engine in one mode. In a guide, a block marked `yaml job` is
a job file, one marked `yaml part` a few keys of one (`MINIMAL` has the rest), and each block marked
`yaml rendered` below it is written from what the nearest of them renders to. Words behind the mark
say what to show: `engine=job mode=plain version=1.36`, `kind=Job,Service` (all kinds if nothing is
said), and of the first of them `at=spec.template.spec` `keys=hostNetwork,dnsPolicy`; of a list,
`only=NCCL_` leaves entries whose names begin so.

What people copy from a page has to be what the program says today, which only the program knows.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from holdfast.drivers.kubernetes.manifests import text  # noqa: E402 - after the path
from holdfast.drivers.kubernetes.manifests.render import as_text, render, requested  # noqa: E402
from holdfast.drivers.kubernetes.manifests.request import NEWEST, Body, Request  # noqa: E402
from holdfast.spec import Job, job_from_dict  # noqa: E402
from holdfast.spec.cluster import Engine, Mode  # noqa: E402
from holdfast.spec.load import job_as_written  # noqa: E402

GUIDES = tuple(
    ROOT / "docs" / "guides" / f"{name}.md"
    for name in ("kubernetes", "engines", "networking", "storage", "preemption")
)
RECIPES = ROOT / "recipes" / "kubernetes"
FOLDER = ROOT / "deploy" / "examples"
BLOCK = re.compile(r"^```yaml (job|part|rendered)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MINIMAL: dict[str, Any] = {
    "name": "gpt",
    "script": "train.py",
    "image": "registry.example/train:1",
    "nodes": 2,
}


class Example(NamedTuple):
    """A recipe, rendered."""

    recipe: str
    engine: Engine
    mode: Mode

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.recipe}.{self.engine}.{self.mode}.yaml"


EXAMPLES = (
    Example("infiniband", "job", "plain"),
    Example("infiniband", "pytorchjob", "plain"),
    Example("two-node-ddp", "pods", "plain"),
    Example("two-node-ddp", "pods", "managed"),
    Example("two-node-ddp", "job", "plain"),
    Example("two-node-ddp", "job", "managed"),
    Example("two-node-ddp", "jobset", "plain"),
    Example("two-node-ddp", "jobset", "managed"),
    Example("two-node-ddp", "pytorchjob", "plain"),
    Example("two-node-ddp", "pytorchjob", "managed"),
    Example("two-node-ddp", "trainjob", "plain"),
    Example("two-node-ddp", "trainjob", "managed"),
    Example("efa-p5", "pytorchjob", "plain"),
    Example("mpi-512x8", "mpijob", "plain"),
    Example("tf-mirrored", "tfjob", "plain"),
    Example("nightly-retrain", "cronjob", "plain"),
    Example("nightly-retrain", "cronjob", "managed"),
    Example("sweep", "job", "plain"),
    Example("spot", "jobset", "plain"),
    Example("spot", "job", "managed"),
    Example("kueue-topology", "jobset", "plain"),
    Example("kueue-topology", "job", "managed"),
    Example("volcano-gang", "volcano", "plain"),
    Example("volcano-gang", "volcano", "managed"),
    Example("spares", "job", "managed"),
)

ABOUT = """# Manifests to copy

What `holdfast render` makes of the job files in [recipes/kubernetes](../../recipes/kubernetes), for
those who only want YAML. `plain` needs nothing of Holdfast in the image; `managed` runs its agents
and its controller. Namespaces are left open: `kubectl apply -n NAMESPACE -f FILE`.

Written by `make docs`; a test compares them with what is rendered. Change the recipe, or render
your own: `holdfast render job.yaml --engine jobset --mode plain`.

| manifest | engine | mode | for |
| --- | --- | --- | --- |
"""


# ── examples ──────────────────────────────────────────────────────────────────────────────────


def examples() -> dict[Path, str]:
    """Every file in deploy/examples with its text."""
    rendered = {example.file: _example(example) for example in EXAMPLES}
    return {FOLDER / "README.md": ABOUT + "".join(map(_row, EXAMPLES)), **rendered}


def _example(example: Example) -> str:
    path = RECIPES / f"{example.recipe}.yaml"
    words = f"{path.relative_to(ROOT)} --engine {example.engine} --mode {example.mode}"
    request = requested(job_as_written(path), engine=example.engine, mode=example.mode)
    return f"# {_purpose(path)}\n# holdfast render {words}\n{as_text(render(request))}"


def _purpose(recipe: Path) -> str:
    """The first line of a recipe, which says what it is for."""
    with recipe.open() as file:
        return file.readline().removeprefix("# ").strip()


def _row(example: Example) -> str:
    purpose = _purpose(RECIPES / f"{example.recipe}.yaml")
    name = example.file.name
    return f"| [{name}]({name}) | {example.engine} | {example.mode} | {purpose} |\n"


# ── guides ────────────────────────────────────────────────────────────────────────────────────


def guides() -> dict[Path, str]:
    """Every guide with its snippets written anew."""
    return {path: page(path.read_text(), path.name) for path in GUIDES}


def page(old: str, where: str) -> str:
    """The text of a guide, what is rendered in it written anew."""
    return "".join(_pieces(old, where))


def _pieces(old: str, where: str) -> Iterator[str]:
    end, job = 0, None
    for block in BLOCK.finditer(old):
        yield old[end : block.start(3)]
        kind, words, body = block[1], block[2], block[3]
        if kind == "rendered":
            assert job is not None, f"{where}: a rendered block without a job before it"
            body = snippet(job, dict(word.split("=", 1) for word in words.split()))
        else:
            job = job_of(kind, body, where)
        yield body
        end = block.end(3)
    yield old[end:]


def job_of(kind: str, body: str, where: str) -> Job:
    """The job of a block: whole, or a part of one."""
    given = yaml.safe_load(body)
    return job_from_dict(given if kind == "job" else {**MINIMAL, **given}, where=where)


def snippet(job: Job, options: dict[str, str]) -> str:
    """What the words behind `rendered` ask for."""
    kinds = options.get("kind", "").split(",")
    found = [
        body for body in render(_request(job, options)) if body["kind"] in kinds or kinds == [""]
    ]
    assert found, f"{job.name}: nothing of kind {kinds}"
    if "at" not in options:
        return as_text(found)
    return text.document(_part(found[0], options), text.Notes({}))


def _request(job: Job, options: dict[str, str]) -> Request:
    engine, mode = options.get("engine"), options.get("mode")
    major, _, minor = options.get("version", "").partition(".")
    version = (int(major), int(minor)) if major else NEWEST
    return requested(
        job, engine=cast("Engine | None", engine), mode=cast("Mode | None", mode), version=version
    )


def _part(body: Body, options: dict[str, str]) -> Body:
    """The value at a path: a mapping as it is, anything else below its key."""
    value: Any = body
    *_, last = steps = options["at"].split(".")
    for step in steps:
        value = value[int(step) if step.isdigit() else step]
    if isinstance(value, dict):
        keys = options["keys"].split(",") if "keys" in options else list(value)
        return {key: value[key] for key in keys}
    if isinstance(value, list) and "only" in options:
        begins = tuple(options["only"].split(","))
        value = [item for item in value if str(item.get("name")).startswith(begins)]
    return {last: value}


def write() -> None:
    """Write every example and every guide; examples that are no longer listed go."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = examples()
    for path, new in {**made, **guides()}.items():
        path.write_text(new)
    for path in set(FOLDER.iterdir()) - made.keys():
        path.unlink()
