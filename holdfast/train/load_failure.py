"""What keeps a snapshot or checkpoint from being loaded, by what has to be done about it.

Three things that must not be taken for each other. Storage that does not answer may do so in a
moment, and what it holds is as good as before. A misfit is sound, but of another model. Damage
stays, and an older checkpoint is the best there is.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from holdfast.errors import Error


class FailureKind(StrEnum):
    """Those that count before others come first: they are the same on all ranks that see them."""

    UNCLEAR = "unclear"  # it does not say what is a part of what
    MISFIT = "misfit"
    DAMAGED = "damaged"  # or gone
    STORAGE = "storage"


_ORDER = list(FailureKind)


class LoadFailure(msgspec.Struct, frozen=True, array_like=True):
    """What is wrong, and the words for it."""

    kind: FailureKind
    text: str


def failure_of(error: Error) -> LoadFailure:
    """What an error of reading means. What is not there will not be there later either."""
    away = error.slug.startswith("storage-") and error.slug != "storage-missing"
    return LoadFailure(
        FailureKind.STORAGE if away else FailureKind.DAMAGED, f"{error.what}: {error.why}"
    )


def worst(failures: Iterable[LoadFailure]) -> LoadFailure | None:
    """All of the kind that counts most; None for none."""
    found = list(failures)
    if not found:
        return None
    kind = min((one.kind for one in found), key=_ORDER.index)
    texts = dict.fromkeys(one.text for one in found if one.kind is kind)
    return LoadFailure(kind, "; ".join(texts))
