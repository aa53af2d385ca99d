"""Writes docs/reference from the code: `make docs`, or `python docs/generate.py`.

Each page is a function from code to Markdown, listed in `PAGES`; a test compares what they give
with what is checked in. Written by hand are only the sentences that no code holds. Manifests, in
guides and in deploy/examples, are written by `manifests.py`.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import typer.main  # noqa: E402 - after the path

from docs import manifests  # noqa: E402
from docs.job_files import FILES  # noqa: E402
from docs.ladder import ladder  # noqa: E402
from docs.markdown import prose, table  # noqa: E402
from docs.metrics import metrics  # noqa: E402
from docs.training import train  # noqa: E402
from docs.troubleshooting import guide, guide_notice, known_problems  # noqa: E402
from holdfast.cli.app import app  # noqa: E402
from holdfast.cli.torchrun import FLAGS  # noqa: E402
from holdfast.diagnosis import CAUSES  # noqa: E402
from holdfast.diagnosis.advice import ADVICE  # noqa: E402
from holdfast.diagnosis.verdict import KnownCause, Origin  # noqa: E402
from holdfast.drivers.kubernetes.lint import CHECKS  # noqa: E402
from holdfast.drivers.kubernetes.manifests.checks.effects import NEEDS  # noqa: E402
from holdfast.drivers.kubernetes.manifests.checks.frameworks import MANAGED, PLAIN  # noqa: E402
from holdfast.drivers.kubernetes.manifests.checks.limits import LIMITS, MODES  # noqa: E402
from holdfast.drivers.kubernetes.manifests.gang import NATIVE_SINCE, possible  # noqa: E402
from holdfast.errors import SLUGS, ExitStatus  # noqa: E402
from holdfast.monitoring.alerts import rules_file  # noqa: E402
from holdfast.monitoring.dashboards import DASHBOARDS, as_json  # noqa: E402
from holdfast.operator import definition, rights  # noqa: E402
from holdfast.simulation.scenario import Mix, Scenario, shipped  # noqa: E402
from holdfast.spec.cluster import ENGINES, Engine  # noqa: E402
from holdfast.spec.load import TEXT_BYTES_MAX, job_schema  # noqa: E402
from holdfast.spec.reading import DEPTH_MAX, FILE_BYTES_MAX, VALUES_MAX  # noqa: E402

REFERENCE = ROOT / "docs" / "reference"
NOTICE = "<!-- Written by docs/generate.py (`make docs`). Change the code, not this page. -->\n"

EXIT_MEANINGS = {
    ExitStatus.OK: "The command did what was asked; for `run` and `resume`: the job succeeded.",
    ExitStatus.JOB_FAILED: "The job failed: the fault is in its own code. Of `check`: one failed.",
    ExitStatus.USAGE: "The command line or the job file is wrong, or does not fit the job's state.",
    ExitStatus.PLATFORM: "The machine does not allow it: disk, memory, ports, a broken journal.",
    ExitStatus.NOT_FOUND: "There is no such job, incident or error.",
    ExitStatus.GAVE_UP: "Holdfast gave up: no way was left to keep the job going.",
    ExitStatus.INTERRUPTED: "The job was stopped: Ctrl-C, SIGTERM or `holdfast stop`.",
}

SHAPES = (
    "status.py",
    "evidence.py",
    "simulation/answer.py",
    "simulation/result.py",
    "simulation/swarm.py",
    "planning/answer.py",
    "reporting/shapes.py",
)

CHECKED = ("name", "state", "found", "seconds", "digest", "help")
FINDING = ("file", "slug", "level", "kind", "name", "path", "what", "why", "help")


# ── the pages ─────────────────────────────────────────────────────────────────────────────────


def cli() -> str:
    """Every command with its arguments and options."""
    commands: Any = typer.main.get_command(app)
    told = list(_verbs(commands, ""))
    body = "\n\n".join(_command(name, command) for name, command in told)
    return f"""# Command line

Results are printed on standard output, everything else on standard error. With `--json` the result
is one JSON object (see [json.md](json.md)); for `watch` and `logs` one object per line. An error is
then also printed as `{{"error": {{"slug", "what", "why", "help", "exit_status"}}}}` on standard
output. `NO_COLOR` is respected, and no colour is used where output is not a terminal. Jobs are kept
below `HOLDFAST_HOME` (default `~/.holdfast`). A command without a job's name means the newest job.

`holdfast --install-completion` installs completion for the shell. Exit statuses:
[exit-status.md](exit-status.md). Flags of torchrun: [torchrun-flags.md](torchrun-flags.md).

{body}
"""


def _verbs(group: Any, before: str) -> Iterator[tuple[str, Any]]:
    """Every command, those of a group by both words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _verbs(command, f"{before}{name} ")
        elif not command.hidden:
            yield f"{before}{name}", command


def _command(name: str, command: Any) -> str:
    rows = [_parameter(p) for p in command.params if not p.hidden]
    options = table(("argument or option", "meaning"), rows)
    return f"## holdfast {name}\n\n{prose(command.help)}\n\n{options}"


def _parameter(parameter: Any) -> tuple[str, str]:
    names = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        names = [parameter.metavar or parameter.name.upper()]
    text = str(parameter.help or "")
    default = parameter.default
    if isinstance(default, (int, str)) and not isinstance(default, bool):
        text += f" Default: `{default}`."
    return ", ".join(f"`{name}`" for name in names), text


def job() -> str:
    """Every key of the job file."""
    schema = job_schema()
    rows = list(_keys(schema, schema, ""))
    return f"""# Job file

A job is one YAML file, run by `holdfast run job.yaml` and checked by `holdfast validate job.yaml`,
or a `holdfast.Job` in Python. `holdfast schema` prints its JSON schema. Unknown keys are errors.
Exactly one of `script`, `module` and `command` is given; `script` and `workdir` are relative to the
folder of the file. Durations end in `_s` (seconds), sizes in `_bytes`.

```yaml
name: gpt
script: train.py
args: ["--lr", "3e-4"]
nodes: {{count: 2, spares: 1}}
workers_per_node: 1
recovery:
  max_restarts: 20
```

## YAML as it is read here

| what | how it is read |
| --- | --- |
| `true`, `false`, `null`, `~`, whole and decimal numbers, `0x1F` | as YAML 1.1 and 1.2 agree |
| `010`, `0o17`, `0b11`, `1:30`, `1_000`, `yes`, `no`, `on`, `off` | an error, as the two versions \
differ: quote it if it is text |
| `1e-4` | text in `args` and other text, a number where one is expected |
| `2024-01-01`, `=` | text |
| keys | always text; twice the same is an error, on one line too |
| `&anchor`, `*alias`, `<<` | accepted; an alias of what it is a part of is an error |
| tags | `!!str` only |
| counts | whole numbers: neither `true`, nor `3.0`, nor `"3"` |

The text is UTF-8 without control characters. A file has at most {FILE_BYTES_MAX >> 20} MiB, \
{VALUES_MAX:,} values with all
aliases written out, and {DEPTH_MAX} levels. A text has at most {TEXT_BYTES_MAX:,} bytes, because \
Linux takes
no more in one argument or variable, and no NUL. Names of variables are printable ASCII without `=`.

## Keys

{table(("key", "type", "default", "meaning"), rows)}
"""


def _keys(schema: dict[str, Any], section: dict[str, Any], prefix: str) -> Iterator[list[str]]:
    for name, field in section["properties"].items():
        inner = _section(schema, field)
        default = "required" if name in section.get("required", ()) else _default(field)
        kind = "section" if inner else _type(field)
        text = field.get("description", "")
        yield [f"`{prefix}{name}`", kind, "" if inner else default, text]
        if inner:
            yield from _keys(schema, inner, f"{prefix}{name}.")


def _section(schema: dict[str, Any], field: dict[str, Any]) -> dict[str, Any] | None:
    choices = [field, *field.get("anyOf", ())]
    references = [choice["$ref"] for choice in choices if "$ref" in choice]
    return schema["$defs"][references[0].rpartition("/")[2]] if references else None


def _default(field: dict[str, Any]) -> str:
    import json

    default = field.get("default")
    return f"`{json.dumps(default)}`" if default is not None else ""


def _type(field: dict[str, Any]) -> str:
    if "anyOf" in field:
        return " or ".join(_type(choice) for choice in field["anyOf"] if choice != NULL)
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('/')[2]}`"
    match field["type"]:
        case "array" if "prefixItems" in field:
            return " and ".join(_type(item) for item in field["prefixItems"])
        case "array":
            return f"list of {_type(field['items'])}"
        case "object" if isinstance(field.get("additionalProperties"), dict):
            inner = _type(field["additionalProperties"])
            return "text for each name" if inner == "text" else f"{inner} for each name"
        case "object":
            return "text for each name"
        case kind:
            return TYPES[kind] + _range(field)


NULL = {"type": "null"}
TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}


def _range(field: dict[str, Any]) -> str:
    bounds = [f"{sign} {field[key]}" for key, sign in BOUNDS.items() if key in field]
    bounds += [f"at most {field['maxLength']} characters"] if "maxLength" in field else []
    return f" ({', '.join(bounds)})" if bounds else ""


def scenario() -> str:
    """Every key of a scenario and of a failure mix."""
    asked, mix = Scenario.model_json_schema(), Mix.model_json_schema()
    header = ("key", "type", "default", "meaning")
    rows = list(_keys(asked, asked, ""))
    losses = list(_keys(asked, asked["$defs"]["Loss"], "losses[]."))
    causes = list(_keys(mix, mix["$defs"]["Cause"], "causes.NAME."))
    return f"""# Scenario

The YAML that `holdfast simulate SCENARIO.yaml` reads. How to use it:
[capacity.md](../guides/capacity.md). Shipped are {", ".join(f"`{name}`" for name in shipped())}.
Every number can be overridden by its key, as in `--set times.detection_s=2`, and varied, as in
`--sweep spares=0..16`. Unknown keys are errors. Durations end in `_s` (seconds) or `_h` (hours).
Numbers marked as assumed have no source: set yours. What YAML is accepted: [job.md](job.md).

{table(header, [*rows, *losses])}

## Failure mix

The file that `failures.mix` names, by the name of a shipped one or a path relative to the scenario.

{table(header, [*_keys(mix, mix, ""), *causes])}
"""


def errors() -> str:
    """Every error."""
    told = (
        f"## {slug}\n\nExit status {int(entry.status)}. {entry.explanation}"
        for slug, entry in SLUGS.items()
    )
    body = "\n\n".join(told)
    return f"""# Errors

Every error is printed as `error[SLUG]: what`, then `why:` and `help:`. `holdfast explain SLUG`
prints the text below.

{body}
"""


def causes() -> str:
    """What an incident can name as its cause, and what follows from it."""
    rows = [(f"`{name}`", cause.meaning, _then(cause)) for name, cause in CAUSES.items()]
    help_ = [(f"`{name}`", ADVICE[name]) for name in CAUSES]
    return f"""# Causes of incidents

`holdfast incidents` and `holdfast why` name one of these. The cause is taken from the rank that
failed first for a reason of its own: what cannot be a consequence outweighs what may be one.

- **retried**: the workers restart; after a second attempt without progress, with a growing delay.
- **waited for**: the same, with longer waits (5 s, doubled up to 6 minutes), whatever the step and
  however often it comes. Restarts never exceed the cap; a job that has used it up waits. What ends
  the job is `recovery.window_s` (an hour) of such errors without any progress.
- **retried once**: the same error at the same place without progress ends the job. The number
  in `recovery.max_restarts` or `--max-restarts`, where one is given, is used instead:
  exactly that many restarts, for this and for what is waited for, and then the job ends.

{table(("cause", "meaning", "then"), rows)}

Errors of the environment are known by the exception, or one that it was raised from: broken and
refused connections, names that do not resolve, time-outs (also of a DataLoader), HTTP 408, 429 and
5xx, throttling of object stores, EIO, ESTALE and the like, and Holdfast's own `storage-*`. A 403 or
404, `FileNotFoundError`, an invalid certificate and other mistakes of a script in using a
connection count as errors of the script.

## What to do

{table(("cause", "what to do"), help_)}
"""


def _then(cause: KnownCause) -> str:
    if cause.final:
        return "the job ends"
    match cause.origin:
        case Origin.CODE:
            return "retried once"
        case Origin.ENVIRONMENT:
            return "waited for"
        case Origin.ELSEWHERE:
            return "retried"


def exit_status() -> str:
    """What the exit statuses mean."""
    rows = [(str(int(s)), f"`{s.name}`", EXIT_MEANINGS[s]) for s in ExitStatus]
    return f"""# Exit statuses

Of every `holdfast` command.

{table(("status", "name", "meaning"), rows)}
"""


def torchrun_flags() -> str:
    """What becomes of torchrun's flags."""
    rows = [
        (
            ", ".join(f"`{n}`" for n in flag.names),
            _treatment(flag.treatment, flag.harmless),
            flag.text,
        )
        for flag in FLAGS
    ]
    return f"""# Flags of torchrun

`holdfast run` takes the flags of torchrun (PyTorch 2.13), so that replacing the word works. A flag
is used; or accepted with a note on standard error, because Holdfast does not need it; or refused,
because leaving it out would change what the job means. Variables named `PET_*` are not read, and a
note says so when there are any. `--rdzv-endpoint` and `--master-addr` are accepted for one node or
when they name this machine.

{table(("flag", "what becomes of it", "how"), rows)}
"""


def _treatment(treatment: str, harmless: frozenset[str]) -> str:
    values = sorted(harmless - {""})
    return f"{treatment}, except {' or '.join(f'`{v}`' for v in values)}" if values else treatment


def files() -> str:
    """Every file of a job."""
    rows = [(f"`{path}`", writer, text) for path, writer, text in FILES]
    return f"""# Files of a job

Below `$HOLDFAST_HOME/jobs/NAME/` (default `~/.holdfast/jobs/NAME/`), a folder of mode 0700.
Removing the folder of an ended job removes all there is of it.

The last field of a line of the journal, `xxh`, is the XXH3-64 of the line without it, with that of
the line before as seed: damage is found, and told with line and byte (`error[journal-corrupt]`).
`jq` reads it line by line: `jq -c '[.seq, .event.type]' journal.jsonl`.

{table(("path", "written by", "what"), rows)}
"""


def lint() -> str:
    """Every check of `holdfast lint`, by the part of Kubernetes that it is about."""
    parts: dict[str, list[Any]] = {}
    for check in CHECKS.values():
        parts.setdefault(check.look.__module__, []).append(check)
    body = "\n\n".join(_checks(module, found) for module, found in sorted(parts.items()))
    errors = sum(check.level == "error" for check in CHECKS.values())
    return f"""# Checks of manifests

`holdfast lint FILE...` looks at Kubernetes manifests, ours or anybody's, for what no schema can
tell: {errors} errors, which a cluster refuses or which break training, and
{len(CHECKS) - errors} warnings, which will cost time some day. Exit status 2 where there is an
error. `holdfast validate --engine E job.yaml` looks at what a job file would be rendered to.

{body}
"""


def _checks(module: str, found: list[Any]) -> str:
    told = ast.get_docstring(ast.parse(Path(sys.modules[module].__file__ or "").read_text())) or ""
    rows = [
        (f"`{c.slug}`", c.level, ", ".join(c.at).replace("*", "anything"), c.why, c.help)
        for c in found
    ]
    title = told.partition("\n")[0].removeprefix("Traps ").rstrip(".")
    head = table(("check", "level", "looks at", "why", "help"), rows)
    return f"## {title[0].upper()}{title[1:]}\n\n{head}"


def json_shapes() -> str:
    """The JSON shapes, from the source of where they are defined, comments included."""
    sources = [(ROOT / "holdfast" / path).read_text() for path in SHAPES]
    shapes = [
        (node, source.splitlines())
        for source in sources
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    ]
    body = "\n\n".join(_shape(node, lines) for node, lines in shapes)
    return f"""# JSON

What `--json` prints. Fields are only ever added. Times are seconds since the epoch (UTC), durations
end in `_s`.

| command | object |
| --- | --- |
| `status`, `watch` (one object a line) | `JobStatus` |
| `top` | list of objects: `namespace` (null on this machine), `status` (`JobStatus`) |
| `status --all` | list of `JobStatus`, less those that cannot be read |
| `run`, `resume`, once the job has ended | `JobStatus` |
| `incidents` | list of `Incident` |
| `goodput` | `Goodput` |
| `report` | `JobReport` |
| `why` | `job`, `phase`, `outcome`, `why`, `waiting_for`, `incident` (or null), `log_tail` |
| `run --detach`, `resume --detach` | `job`, `folder`, `pid` |
| `submit`, `run --detach --on kubernetes` | `job`, `namespace`, `engine`, `objects_count` |
| `submit --dry-run client` | list of manifests |
| `submit --dry-run server` | list of `kind`, `name`, `change`, `note`, `diff` |
| `resume --on kubernetes` | `job`, `done` (list of sentences) |
| `list` | list of `job`, `namespace`, `phase`, `waiting_for`, `status` (`JobStatus` or null) |
| `delete` | `job`, `deleted`, `kept` |
| `nodes` | list of `machine`, `owner`, `reason`, `expires`, `expired` |
| `nodes --lift` | `lifted` |
| `logs` (one object a line) | `attempt` (null on Kubernetes), `rank`, `line` |
| `stop` | `job`, `asked`, `killed_count`, `unreached` (why nodes may still run, or null) |
| `validate` | `valid`, `job` |
| `lint` | `error_count`, `warning_count`, `findings` [{", ".join(f"`{k}`" for k in FINDING)}] |
| `simulate SCENARIO` | `Answer` |
| `simulate SCENARIO --sweep ...` | `SweepAnswer` |
| `simulate --swarm` | `worlds`, `outcomes` {{outcome or `foul`: count}}, `fouls` [`Told`] |
| `simulate --seed` | `world` (`Told`), `journal` (path) |
| `sweep`, `run` of a sweep | `SweepStatus` |
| `plan` | `PlanAnswer` |
| `plan --simulate` | `plan` (`PlanAnswer`), `simulated` {{`ettr`, `ettr_half`, `seeds`}} |
| `doctor` | `ok`, `checks` [`name`, `ok`, `found`, `help`] |
| `check` | `ok`, `machine`, `checks` [{", ".join(f"`{k}`" for k in CHECKED)}] |
| `replay` | `job`, `step`, `from_step`, `verdict`, `summary`, `differing` |
| `explain` | `slug`, `exit_status`, `explanation` |
| `version` | `holdfast`, `python` |
| any error | `error` {{`slug`, `what`, `why`, `help`, `exit_status`}} |

{body}
"""


def _shape(node: ast.ClassDef, lines: list[str]) -> str:
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    rows = [(f"`{ast.unparse(f.target)}`", _annotation(f), _comment(f, lines)) for f in fields]
    header = ("field", "type", "meaning")
    return f"## {node.name}\n\n{prose(ast.get_docstring(node) or '')}\n\n{table(header, rows)}"


def _annotation(field: ast.AnnAssign) -> str:
    text = ast.unparse(field.annotation).replace("None", "null")
    return re.sub(r"tuple\[(\w+), \.\.\.\]", r"list[\1]", text)


def _comment(field: ast.AnnAssign, lines: list[str]) -> str:
    """The comment on the lines of a field."""
    own = lines[field.lineno - 1 : field.end_lineno]
    found = (re.search(r"#\s*(.*)$", line) for line in own)
    return " ".join(match[1] for match in found if match)


def engines() -> str:
    """What each engine honours."""
    needs = table(
        ["setting", "needs"], [[f"`{path}`", needed] for path, (needed, _) in NEEDS.items()]
    )
    return f"""# Engines

What each engine of `holdfast render --engine` can do. A setting that is given to an engine which
cannot honour it is an error, `engine-unsupported`; nothing is dropped silently.

## Settings

Everything in the job file that is not in this table is honoured by every engine in both modes.
`m`: in managed mode, `p`: in plain mode. A section stands for all that is in it.

{table(["setting", *ENGINES], [_honoured(path) for path in LIMITS])}

## Frameworks

Managed mode starts {" and ".join(f"`{name}`" for name in MANAGED)} on every engine. Plain mode:

{table(["engine", "frameworks"], [[e, ", ".join(PLAIN[e])] for e in ENGINES])}

## Gangs

Kinds of `scheduling.gang`, with the first version of Kubernetes whose own gangs work with the
engine.

{table(["engine", "managed", "plain", "native since"], [_gangs(e) for e in ENGINES])}

## Settings that need another

Without it they would have no effect, which is an error too, `setting-idle`.

{needs}
"""


def _honoured(path: str) -> list[str]:
    cells = [
        " ".join(mode[0] for mode in MODES if (engine, mode) in LIMITS[path].where)
        for engine in ENGINES
    ]
    return [f"`{path}`", *cells]


def _gangs(engine: Engine) -> list[str]:
    kinds = [", ".join(possible(engine, mode, (9, 0))) for mode in MODES]
    since = NATIVE_SINCE["pods" if engine == "cronjob" else engine]
    native = "native" in " ".join(kinds)
    return [engine, *kinds, f"{since[0]}.{since[1]}" if native else ""]


PAGES = {
    "cli.md": cli,
    "job.md": job,
    "scenario.md": scenario,
    "errors.md": errors,
    "causes.md": causes,
    "ladder.md": ladder,
    "known-problems.md": known_problems,
    "exit-status.md": exit_status,
    "torchrun-flags.md": torchrun_flags,
    "files.md": files,
    "engines.md": engines,
    "lint.md": lint,
    "metrics.md": metrics,
    "json.md": json_shapes,
    "train.md": train,
}
GUIDES = {"troubleshooting.md": guide}  # from a template
BY_HAND = frozenset(("checkpoint-format.md",))  # for those who write another reader


DEPLOYED: dict[str, Callable[[], str]] = {
    "crd/trainingjob.yaml": definition.as_yaml,
    "rbac/role.yaml": rights.as_yaml,
    "monitoring/rules.yaml": rules_file,
    **{f"monitoring/dashboards/{name}.json": partial(as_json, name) for name in DASHBOARDS},
}


def main() -> None:
    """Write every page, and what is installed in a cluster."""
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(NOTICE + page())
    for name, page in GUIDES.items():
        (ROOT / "docs" / "guides" / name).write_text(guide_notice(name) + page())
    manifests.write()
    for path, text in DEPLOYED.items():
        (ROOT / "deploy" / path).write_text(text())


if __name__ == "__main__":
    main()
