"""Errors a person sees: what is wrong, why, and a command that helps.

Every error has a slug listed in `SLUGS`; the command line turns its exit status into the process's.
"""

import re

from holdfast.exit_status import ExitStatus, Slug
from holdfast.slugs import SLUGS

__all__ = ["SLUGS", "Error", "ExitStatus", "Slug", "clipped", "shown", "visible"]

# What a terminal obeys or cannot show: control characters but for tab and line feed, marks that
# turn the direction of writing, characters without width, halves of surrogate pairs (bytes of an
# argument that are no UTF-8).
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff]"
)
WHAT_MAX = 600
WHY_MAX = 6_000
SHOWN_MAX = 80


def visible(text: str) -> str:
    """`text` with an escape, as in `\\x1b`, for every character that is not one to look at."""
    return UNSEEN.sub(lambda found: ascii(found[0])[1:-1], text)


def clipped(text: str, limit: int) -> str:
    """`text`, of which the middle is left out if it is longer than `limit`."""
    if len(text) <= limit:
        return text
    note = f" ... {len(text):,} characters ... "
    kept = max(limit - len(note), 2)
    return text[: kept - kept // 3] + note + text[len(text) - kept // 3 :]


def shown(value: object) -> str:
    """A value that was given, in quotes and short enough to stand in a message."""
    return visible(clipped(repr(value) if isinstance(value, str) else str(value), SHOWN_MAX))


class Error(Exception):
    """A problem to be shown to a person as `error[slug]: what`, `why: ...`, `help: ...`.

    `help` should be a command that works when pasted, or one plain sentence. Each part is made
    visible and kept to a length, for it quotes what was given, which may be anything.
    """

    def __init__(self, slug: str, what: str, *, why: str, help: str) -> None:  # noqa: A002
        if slug not in SLUGS:
            raise KeyError(f"error slug {slug!r} is not in SLUGS")
        self.slug = slug
        self.what = _part(what.replace("\n", "\\n"), WHAT_MAX)
        self.why = _part(why, WHY_MAX)
        self.help = _part(help, WHAT_MAX)
        super().__init__(self.what)

    @property
    def status(self) -> ExitStatus:
        """The exit status this error ends a command with."""
        return SLUGS[self.slug].status

    def __str__(self) -> str:
        return f"error[{self.slug}]: {self.what}\n  why: {self.why}\n  help: {self.help}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.slug, self.what, self.why, self.help))


def _part(text: str, limit: int) -> str:
    return clipped(visible(text), limit)


def _rebuild(slug: str, what: str, why: str, help_: str) -> Error:
    return Error(slug, what, why=why, help=help_)
