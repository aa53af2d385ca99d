"""torchrun's flags: what each one becomes here.

One table. A flag is used, or accepted because Holdfast does the same or better without it, or
refused because leaving it out would silently change what the job means. The parser of
`holdfast run`, the notes it prints and the table in the documentation all come from here.
"""

import inspect
import os
import re
import socket
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any, NamedTuple

import typer

from holdfast import devices
from holdfast.errors import Error


class Treatment(StrEnum):
    """What happens to a flag of torchrun."""

    USED = "used"
    ACCEPTED = "accepted, not needed"
    REFUSED = "refused"


class Flag(NamedTuple):
    """One flag. `harmless` are the values with which a refused flag changes nothing."""

    names: tuple[str, ...]
    takes_value: bool
    treatment: Treatment
    text: str
    harmless: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """The name of its parameter."""
        return self.names[-1].lstrip("-").replace("-", "_")


def _both(name: str) -> tuple[str, ...]:
    """`--a-b` and `--a_b`: torchrun takes either."""
    return tuple(dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}")))


def _used(*names: str, text: str, value: bool = True) -> Flag:
    return Flag(names, value, Treatment.USED, text)


def _accepted(*names: str, text: str, value: bool = True) -> Flag:
    return Flag(names, value, Treatment.ACCEPTED, text)


def _refused(*names: str, text: str, value: bool = True, harmless: str = "") -> Flag:
    values = frozenset(harmless.split()) | {""}
    return Flag(names, value, Treatment.REFUSED, text, values)


FRESH_STORE = "every attempt gets a new store on a free port"
ONE_PLACE = "one `holdfast run` starts all nodes, on this machine"

FLAGS = (
    _used(
        "--nnodes",
        text="Nodes that train: `N`, or `MIN:MAX` for `MAX` nodes and "
        "`elasticity: {min_nodes: MIN, max_nodes: MAX}`.",
    ),
    _used(
        *_both("nproc-per-node"),
        text="Workers per node: a number, `gpu`, `cpu`, or `auto` (GPUs, else CPU cores). "
        "Default 1, as with torchrun.",
    ),
    _used(
        *_both("max-restarts"),
        text="Restarts allowed within an hour (torchrun: in total), applied strictly. Default 20 "
        "(torchrun: 0); without a number, an error of the script that repeats at the same "
        "place ends the job.",
    ),
    _used("-m", "--module", value=False, text="Run a module, as with `python -m`."),
    _used(*_both("no-python"), value=False, text="Run any program."),
    _used(*_both("shutdown-timeout"), text="Seconds between SIGTERM and SIGKILL at the end."),
    _accepted("--standalone", value=False, text=FRESH_STORE),
    _accepted(*_both("rdzv-backend"), text=FRESH_STORE),
    _refused(*_both("rdzv-endpoint"), text=ONE_PLACE),
    _accepted(*_both("rdzv-id"), text="the name of the job is its ID"),
    _accepted(*_both("rdzv-conf"), text=FRESH_STORE),
    _refused(*_both("master-addr"), text=ONE_PLACE),
    _accepted(*_both("master-port"), text=f"{FRESH_STORE}; MASTER_PORT names it"),
    _refused(*_both("node-rank"), harmless="0", text=ONE_PLACE),
    _accepted(*_both("local-addr"), text="nodes on this machine use the loopback address"),
    _refused(*_both("role"), harmless="default", text="ROLE_NAME is always `default`"),
    _accepted(*_both("run-path"), value=False, text="a script is always run by its path"),
    _accepted(*_both("monitor-interval"), text="the exit of a worker is noticed immediately"),
    _accepted(*_both("start-method"), text="workers are forked from a warm process"),
    _accepted(*_both("event-log-handler"), text="all events are in the journal of the job"),
    _accepted(*_both("log-dir"), text="logs are in the folder of the job; see `holdfast logs`"),
    _accepted("-r", "--redirects", text="output always goes to a file for each rank"),
    _accepted("-t", "--tee", text="output always goes to files and, see --terminal, is shown"),
    _accepted(*_both("local-ranks-filter"), text="--terminal says which ranks are shown"),
    _refused(*_both("duplicate-stdout-filters"), text="filtered copies of logs are not supported"),
    _refused(*_both("duplicate-stderr-filters"), text="filtered copies of logs are not supported"),
    _refused(*_both("logs-specs"), text="log plugins of torchrun are not supported"),
    _refused(*_both("numa-binding"), text="NUMA binding is not supported"),
    _refused(
        *_both("signals-to-handle"),
        harmless="SIGTERM,SIGINT,SIGHUP,SIGQUIT SIGTERM,SIGINT",
        text="SIGINT, SIGTERM and SIGQUIT stop the job; SIGHUP does not",
    ),
    _refused(
        *_both("virtual-local-rank"), value=False, text="LOCAL_RANK is always the real local rank"
    ),
)
EXTRA = tuple(flag for flag in FLAGS if flag.treatment is not Treatment.USED)
LOCAL_ADDRESS_FLAGS = frozenset(("rdzv_endpoint", "master_addr"))


def takes_torchrun_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Let a typer command accept the flags of `EXTRA`; its parameter `torchrun` gets those given.

    typer reads parameters from the signature, so the signature is what is extended.
    """
    signature = inspect.signature(command)
    extra = [_parameter(flag) for flag in EXTRA]
    kept = [p for p in signature.parameters.values() if p.name != "torchrun"]

    @wraps(command)
    def wrapped(**values: Any) -> None:
        given = {flag.key: values.pop(flag.key) for flag in EXTRA}
        command(**values, torchrun={k: v for k, v in given.items() if v not in (None, False)})

    whole = signature.replace(parameters=[*kept, *extra])
    wrapped.__signature__ = whole  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*kept, *extra)}
    return wrapped


def _parameter(flag: Flag) -> inspect.Parameter:
    kind = str | None if flag.takes_value else bool
    return inspect.Parameter(
        flag.key,
        inspect.Parameter.KEYWORD_ONLY,
        default=None if flag.takes_value else False,
        annotation=Annotated[kind, typer.Option(*flag.names, hidden=True)],
    )


def notes(given: Mapping[str, str | bool], nodes: int) -> list[str]:
    """What to say about flags that are not needed. Raises `Error` usage for a refused one."""
    said: dict[str, list[str]] = {}
    for flag in EXTRA:
        if flag.key not in given:
            continue
        if flag.treatment is Treatment.REFUSED and not _is_harmless(flag, given[flag.key], nodes):
            raise _refusal(flag, given[flag.key])
        said.setdefault(flag.text, []).append(flag.names[0])
    return [f"{', '.join(names)}: not needed; {text}" for text, names in said.items()]


def environment_notes(environment: Mapping[str, str]) -> list[str]:
    """torchrun takes defaults from PET_* variables; Holdfast does not, and says so."""
    found = sorted(name for name in environment if name.startswith("PET_"))
    return [f"{', '.join(found)}: not read; give flags instead"] if found else []


def _is_harmless(flag: Flag, value: str | bool, nodes: int) -> bool:
    if flag.key in LOCAL_ADDRESS_FLAGS:
        return nodes == 1 or _is_local(str(value))
    return value in flag.harmless


def _is_local(endpoint: str) -> bool:
    host = re.sub(r":\d*$", "", endpoint).strip("[]")
    return host in ("", "localhost", "127.0.0.1", "::1", "0.0.0.0", socket.gethostname())


def _refusal(flag: Flag, value: str | bool) -> Error:
    shown = "" if value is True else f" {value}"
    return Error(
        "usage",
        f"{flag.names[0]}{shown} of torchrun is not supported",
        why=flag.text,
        help="omit it if the job does not depend on it",
    )


# ── values ────────────────────────────────────────────────────────────────────────────────────


def node_range(text: str) -> tuple[int, int]:
    """The fewest and the most nodes of `N` or `MIN:MAX`. Raises `Error` usage."""
    least, colon, most = text.partition(":")
    if not (_is_count(least) and (not colon or _is_count(most))):
        raise _bad_value("--nnodes", text, "expected a number of nodes, such as 2, or MIN:MAX")
    fewest, largest = int(least), int(most or least)
    if fewest > largest:
        raise _bad_value("--nnodes", text, f"{fewest} is more than {largest}: MIN comes first")
    return fewest, largest


def workers_per_node(text: str) -> int | str:
    """`N`, `gpu`, `cpu` or `auto`, with torchrun's meaning. Raises `Error` usage."""
    if _is_count(text):
        return int(text)
    match text:
        case "cpu":
            return _cores()
        case "auto":
            return "auto" if gpu_count() else _cores()
        case "gpu" if gpu_count():
            return "auto"
        case "gpu":
            raise _bad_value("--nproc-per-node", text, "this machine has no GPU")
        case _:
            why = "expected a number, auto, gpu or cpu"
            raise _bad_value("--nproc-per-node", text, why)


def _is_count(text: str) -> bool:
    """Whether it is a whole number from 1 on, in ASCII digits; the job file bounds it further."""
    return re.fullmatch(r"0*[1-9][0-9]{0,17}", text, re.ASCII) is not None


def gpu_count() -> int:
    """Devices of the machine that a worker would see."""
    return devices.count("auto", os.environ) if devices.found(os.environ).torch_type != "cpu" else 0


def _cores() -> int:
    return os.cpu_count() or 1


def _bad_value(flag: str, value: str, why: str) -> Error:
    return Error("usage", f"{flag} {value} is invalid", why=why, help="holdfast run --help")
