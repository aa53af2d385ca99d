"""Secrets in plain text: whoever may read a pod or a ConfigMap reads its variables and arguments.

What a value is can be told by its own shape (keys of clouds and forges have prefixes, private keys
a header, tokens of the web three parts) or by the name of its variable. Words are compared whole,
so that TOKENIZERS_PARALLELISM and MAX_TOKENS pass; so do paths, numbers and short words. No pattern
is open at both ends, or a long argument would take minutes. The value is never repeated.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.errors import Error

SHAPES = re.compile(
    r"""\b(?: A[KS]IA[0-9A-Z]{16}
      | gh[pousr]_[A-Za-z0-9]{30,} | github_pat_[A-Za-z0-9_]{30,} | glpat-[A-Za-z0-9_-]{20,}
      | hf_[A-Za-z0-9]{30,} | sk-[A-Za-z0-9_-]{32,} | xox[abprs]-[A-Za-z0-9-]{10,}
      | AIza[A-Za-z0-9_-]{35}
      | eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,} )
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY
    | \b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{1,99}:[^\s/@]{1,999}@""",
    re.VERBOSE,
)
WORDS = frozenset(
    ("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "TOKEN", "APIKEY", "CREDENTIAL", "CREDENTIALS")
)
PAIRS = frozenset((("API", "KEY"), ("ACCESS", "KEY"), ("PRIVATE", "KEY"), ("SECRET", "KEY")))
PLACES = frozenset(("FILE", "PATH", "DIR", "URL", "NAME", "ID", "COUNT", "LENGTH"))  # last words
SHORT = 8  # characters: true, none, auto, 4096


def problems(request: Request) -> Iterator[Error]:
    """One problem for each place that holds a secret."""
    job = request.job
    for name, value in {**job.network.nccl, **job.env}.items():
        path = f"env.{name}" if name in job.env else f"network.nccl.{name}"
        if looks_secret(value) or (_named_so(name) and _could_be(value)):
            yield _seen(path, name)
    rest = job.model_dump(mode="json", exclude={"env": True, "network": {"nccl"}, "secrets": True})
    for path, value in _texts(rest, ""):
        if looks_secret(value):
            yield _seen(path, "TOKEN")
    yield from _in_overlay(job.overlay)


def looks_secret(value: str) -> bool:
    """Whether the value has the shape of a key, a token or an address with a password."""
    return SHAPES.search(value) is not None


def _named_so(name: str) -> bool:
    words = re.split(r"[_\-.]+", name.upper())
    if words[-1] in PLACES:
        return False
    return bool(WORDS & set(words)) or bool(PAIRS & set(pairwise(words)))


def _could_be(value: str) -> bool:
    place = value.startswith(("/", "./", "$("))
    return len(value) >= SHORT and not place and not value.replace(".", "", 1).isdigit()


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text below a value, with its path."""
    match value:
        case str():
            yield path, value
        case dict():
            for key, inner in value.items():
                yield from _texts(inner, f"{path}.{key}" if path else str(key))
        case list():
            for index, inner in enumerate(value):
                yield from _texts(inner, f"{path}[{index}]")


def _in_overlay(value: Any, path: str = "overlay") -> Iterator[Error]:
    """Variables that the overlay adds."""
    match value:
        case {"name": str(name), "value": str(text)} if _named_so(name) and _could_be(text):
            yield _seen(path, name)
        case dict():
            for key, inner in value.items():
                yield from _in_overlay(inner, f"{path}.{key}")
        case list():
            for index, inner in enumerate(value):
                yield from _in_overlay(inner, f"{path}[{index}]")


def _seen(path: str, name: str) -> Error:
    return Error(
        "plaintext-secret",
        f"{path} looks like a secret",
        why="everyone with read access to the job's objects, or to this file, could read it",
        help=f"kubectl create secret generic NAME --from-literal=KEY=..., and in the job file "
        f"secrets: [{{name: NAME, env: {{{name}: KEY}}}}]",
    )
