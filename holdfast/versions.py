"""What a job runs: its code, and what was set since it was started. Pure.

Version 1 is the job as it was started. An update makes a new one out of the newest: another bundle
of code (`bundles.py`), known by its hash, other arguments and variables, or another image. An
attempt runs one version on all of its nodes, so every order to start names it; only the image
changes from node to node, because a node keeps the one that it was made with.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

When = Literal["now", "next-step", "next-failure"]
"""Not waiting for the step to end; at its end; with the next recovery, or after a day."""
ENV = "env."  # what a variable is set with


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a job."""

    number: int = 1
    code: str = ""  # SHA-256 of its bundle; empty: the code as the job was started
    given: tuple[str, ...] | None = None  # in place of the arguments that the job had
    sets: dict[str, str] = {}  # options and, after `env.`, variables: what they were set to
    image: str = ""  # of nodes that are made from now on; empty: that of the job as it was started

    def only_image_of(self, other: "Version") -> bool:
        """Whether nothing but the image is another one."""
        mine, its = (self.code, self.given, self.sets), (other.code, other.given, other.sets)
        return mine == its and self.image != other.image

    @property
    def env(self) -> dict[str, str]:
        """The variables that were set."""
        return {k.removeprefix(ENV): v for k, v in self.sets.items() if k.startswith(ENV)}

    def args(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """The arguments, from those that the job was started with."""
        before = before if self.given is None else self.given
        for key, value in self.sets.items():
            if not key.startswith(ENV):
                before = with_option(before, key, value)
        return before


FIRST = Version()


def with_option(args: tuple[str, ...], key: str, value: str) -> tuple[str, ...]:
    """Arguments in which the option has this value: `--key VALUE`, `--key=VALUE` or `key=VALUE`,
    however it is written there, `-` and `_` being the same; else `--key VALUE` is added.

    An option that is there more than once is changed where it counts, the last time.
    """
    places = [at for at, word in enumerate(args) if _option(word) == _plain(key)]
    if not places:
        return (*args, *_words(f"--{key}", value))
    at = places[-1]
    word, sign, _ = args[at].partition("=")
    if sign:
        return (*args[:at], f"{word}={value}", *args[at + 1 :])
    rest = at + 1 if _is_flag(args, at) else at + 2
    return (*args[:at], *_words(word, value), *args[rest:])


def _option(word: str) -> str:
    """Which option a word sets or names; empty for anything else."""
    name, sign, _ = word.partition("=")
    return _plain(name.removeprefix("--")) if name.startswith("--") or sign else ""


def _plain(name: str) -> str:
    return name.replace("_", "-")


def _is_flag(args: tuple[str, ...], at: int) -> bool:
    """Whether what follows the option is no value of it."""
    return at + 1 == len(args) or args[at + 1].startswith("--")


def _words(option: str, value: str) -> Iterator[str]:
    """A value that looks like an option belongs to the same word."""
    if value.startswith("-"):
        yield f"{option}={value}"
    else:
        yield option
        yield value


def merged(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """What was set, the newest value of each; an option has one name, however it is written."""
    found = dict(before)
    for key, value in after.items():
        known = next(
            (k for k in found if _plain(k) == _plain(key) and not key.startswith(ENV)), key
        )
        found[known] = value
    return found
