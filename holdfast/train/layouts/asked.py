"""The layout that a job asks for, as this worker sees it; and what the script asks for on top."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.dimensions import VARIABLE, Dimensions, Layout, layout_in
from holdfast.errors import Error
from holdfast.train.layouts.tensor import Plan


class ModelRequirements(NamedTuple):
    """What `run.parallelize()` is told about a model."""

    blocks: str | None = None
    plan: Plan | None = None
    places: Sequence[str] | None = None


class AskedLayout(NamedTuple):
    """`given` is False where the job says nothing about it."""

    layout: Layout
    dimensions: Dimensions
    given: bool


def asked_layout(world_size: int, environ: Mapping[str, str] = os.environ) -> AskedLayout:
    """Raises `Error` (layout-invalid) where it does not fit the number of ranks."""
    layout = layout_in(environ)
    try:
        return AskedLayout(layout, layout.resolve(world_size), VARIABLE in environ)
    except ValueError as error:
        raise Error(
            "layout-invalid",
            f"the layout of the job does not fit {world_size} ranks",
            why=str(error),
            help="change `parallel` in the job file (or --parallel), or the number of workers",
        ) from None


def unsupported(what: str, why: str, help_: str) -> Error:
    """What cannot be done together."""
    return Error("layout-invalid", what, why=why, help=help_)


def called_alone(dimension: str) -> Error:
    """Of a model that the script has called, where only a step can."""
    return unsupported(
        f"the model was called by itself, but parallel.{dimension} is more than 1",
        "a rank has some of the layers"
        if dimension == "pp"
        else "a rank has a part of each sequence, which run.train_step() cuts",
        "call run.train_step(optimizer, inputs, targets=..., loss=...); evaluate in a layout "
        f"without {dimension}, from a checkpoint",
    )


def require_plain_options(options: Mapping[str, Any], dimensions: Dimensions) -> None:
    """Raise `Error` (layout-invalid) for options of DDP in another layout."""
    if options and not dimensions.replicates_only:
        raise unsupported(
            f"run.parallelize() was given {', '.join(options)}",
            "these are options of DistributedDataParallel, which this layout does not use",
            "omit them, or use a layout with dp_replicate only",
        )
