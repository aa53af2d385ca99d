"""Activation checkpointing of blocks: computing activations again instead of keeping them.

`full` keeps only what a block is given. `selective` also keeps what its matrix products and its
attention have computed, which is most of the work and a small part of the memory. It is put around
`forward`, so that no name of a parameter changes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from holdfast.dimensions import Recomputation
from holdfast.train.layouts.blocks import wrap_forward

_aten = torch.ops.aten
_KEPT = frozenset(
    (
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    )
)


def recompute(blocks: Sequence[nn.Module], wish: Recomputation) -> None:
    """Have each block compute its activations again in the backward pass."""
    for block in blocks if wish != "none" else ():
        wrap_forward(block, _selective if wish == "selective" else _full)


def _full(forward: Any, *args: Any, **kwargs: Any) -> Any:
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _selective(forward: Any, *args: Any, **kwargs: Any) -> Any:
    contexts = partial(create_selective_checkpoint_contexts, _policy)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _policy(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    kept = operation in _KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
