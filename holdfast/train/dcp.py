"""The seam to PyTorch's distributed checkpoints (DCP): our pieces as its Metadata."""

from collections.abc import Mapping

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from holdfast.checkpoint.contents import Pieces


def metadata_of(pieces: Mapping[str, Pieces]) -> Metadata:
    """What DCP has to know of these tensors to plan reads. The index of a piece in it is the
    offset at which it begins."""
    return Metadata(state_dict_metadata={name: _tensor(one) for name, one in pieces.items()})


def _tensor(pieces: Pieces) -> TensorStorageMetadata:
    leaf = next(iter(pieces.values()))[0].leaf
    chunks = [
        ChunkStorageMetadata(torch.Size(at), torch.Size(refs[0].leaf.shape))
        for at, refs in pieces.items()
    ]
    properties = TensorProperties(dtype=getattr(torch, leaf.dtype))
    return TensorStorageMetadata(properties, torch.Size(leaf.whole), chunks)
