"""How the ranks of a job divide its model and its data.

The names are those of torchtitan. What they mean for the ranks is in `holdfast.dimensions`, which
workers read, too.
"""

from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from holdfast.dimensions import (
    NAMES,
    REMAINDER,
    Compression,
    Layout,
    Precision,
    Recomputation,
    ScheduleName,
)
from holdfast.spec.section import Flag, Section, Whole

Ranks = Annotated[Whole, Field(ge=REMAINDER, le=1_000_000)]


class Parallel(Section):
    """How many ranks each dimension of the layout has. Their product is the number of ranks; one
    may be -1, which takes the remainder. For scripts that call `run.parallelize()`."""

    dp_replicate: Ranks = 1
    """Replicas of the model, each with samples of its own (DDP; HSDP with `dp_shard`)."""
    dp_shard: Ranks = REMAINDER
    """Ranks that shard parameters, gradients and optimizer state among them, each with samples of
    its own (FSDP2). If another dimension is -1, the default is 1."""
    tp: Ranks = 1
    """Ranks that divide each layer (tensor parallel); neighbours, so that they are on one node."""
    pp: Ranks = 1
    """Stages of a pipeline, each with some of the layers."""
    cp: Ranks = 1
    """Ranks that divide each sequence (context parallel)."""
    ep: Annotated[Whole, Field(ge=1, le=1_000_000)] = 1
    """Ranks that divide the experts of a layer among them (expert parallel). They are those of
    `dp_shard` and `cp`, so `ep` divides the product of these two and is no factor of the ranks."""
    sequence_parallel: Flag = False
    """With `tp`: also divide what lies between the layers' matrix products, along the sequence."""
    schedule: ScheduleName = "1f1b"
    """Order of the micro-batches in a pipeline. `interleaved` and `zero_bubble` give each rank two
    stages."""
    precision: Precision = "fp32"
    """Of forward and backward pass; parameters and optimizer stay in fp32. `fp16` scales the loss,
    and requires `run.train_step()`."""
    activation_checkpointing: Recomputation = "none"
    """Activations that are computed again in the backward pass instead of being kept: those of
    each block (`full`), or of each block but for matrix products and attention (`selective`)."""
    accumulate: Annotated[Whole, Field(ge=1, le=100_000)] = 1
    """Micro-batches into which `run.train_step()` divides a batch; gradients are reduced once."""
    gradient_compression: Compression = "none"
    """How DDP sends gradients: as they are, as bf16, or as products of small matrices (PowerSGD,
    with error feedback that is part of the state)."""
    compile: Flag = False
    """Compile each block with `torch.compile`."""

    @model_validator(mode="before")
    @classmethod
    def _one_remainder(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        taken = [name for name in NAMES if value.get(name) == REMAINDER]
        if len(taken) > 1:
            raise PydanticCustomError("remainder", f"{' and '.join(taken)} are -1; only one can be")
        return {"dp_shard": 1, **value} if taken else value

    @model_validator(mode="after")
    def _sizes(self) -> "Parallel":
        if none := [name for name in NAMES if getattr(self, name) == 0]:
            raise PydanticCustomError("no_ranks", f"{none[0]} is 0; use a number of ranks or -1")
        others = [name for name in NAMES if name != "dp_replicate" and getattr(self, name) != 1]
        if self.gradient_compression != "none" and others:
            raise PydanticCustomError(
                "compression",
                f"gradient_compression is for dp_replicate alone, but {others[0]} is "
                f"{getattr(self, others[0])}",
            )
        if self.ep > 1 and self.schedule == "zero_bubble":
            raise PydanticCustomError(
                "experts",
                "schedule zero_bubble is incompatible with ep: it splits the backward pass, in "
                "which tokens are exchanged; use 1f1b, gpipe or interleaved",
            )
        return self

    @property
    def layout(self) -> Layout:
        """As workers are told it."""
        return Layout(**self.model_dump())
