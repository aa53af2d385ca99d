"""Taking a checkpoint elsewhere: to `torch.save`, to DCP, to safetensors as Hugging Face lays it
out.

Whatever the layout it was trained in, whole tensors come out, by their names in the model. For
safetensors one tensor after the other is read and written, so the largest has to fit into memory,
not the model. The format is a length, a JSON header and the bytes: it is written here without its
library, so that it can go to any store.
"""

import io
import itertools
import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from holdfast.checkpoint import orbax_form
from holdfast.checkpoint.catalog import Opened
from holdfast.checkpoint.consolidate import consolidated, filled, modules_of
from holdfast.checkpoint.contents import Ref
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.pieces import CheckpointPieces
from holdfast.checkpoint.stores import CheckpointStore
from holdfast.errors import Error

Form = Literal["torch", "dcp", "safetensors", "orbax"]
SHARD_BYTES = 5_000_000_000
_LENGTH = struct.Struct("<Q")
_WRITE_BYTES = 16 << 20
_TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


class _Item(NamedTuple):
    """One tensor of a file of safetensors."""

    name: str
    ref: Ref
    shape: tuple[int, ...]
    bytes: int


def export(
    opened: Opened, to: str, form: str, sharded: bool = False, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a checkpoint to a folder or URL.

    `torch`: `checkpoint.pt`, everything but random numbers, readable with `weights_only`.
    `dcp`: the same as a DCP directory. `safetensors`: the models alone, in one file or, `sharded`,
    in several of at most `shard_bytes` with an index. `orbax`: the trees of `holdfast.pytrees`.

    Raises `Error` checkpoint-damaged, layout-unknown, export-unavailable or storage-*.
    """
    checkpoint = CheckpointPieces(opened)
    match form:
        case "torch":
            _write_torch(checkpoint, open_store(to))
        case "dcp":
            _write_dcp(checkpoint, to)
        case "safetensors":
            limit = shard_bytes if sharded else None
            _write_safetensors(checkpoint, open_store(to), limit)
        case "orbax":
            orbax_form.save(to.removeprefix("file://"), _trees_of(checkpoint))
        case _:
            raise ValueError(f"{form!r} is not one of torch, dcp, safetensors and orbax")


def state_of(checkpoint: CheckpointPieces) -> dict[str, Any]:
    """The whole state in memory; what is of numpy as tensors and numbers of Python."""
    state: dict[str, Any] = filled(
        consolidated(checkpoint.contents), lambda ref: _without_numpy(checkpoint.whole(ref))
    )
    return state


def _without_numpy(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


# ── torch.save and DCP ──


def _write_torch(checkpoint: CheckpointPieces, store: CheckpointStore) -> None:
    buffer = io.BytesIO()
    torch.save(state_of(checkpoint), buffer)
    _put(store, "checkpoint.pt", [buffer.getbuffer()])


def _write_dcp(checkpoint: CheckpointPieces, to: str) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    if "://" in to and not to.startswith("file://"):
        raise Error(
            "export-unavailable",
            f"a DCP directory cannot be written to {to}",
            why="the DCP writer of PyTorch needs a folder",
            help="export to a folder and copy the folder",
        )
    folder = to.removeprefix("file://")
    Path(folder).mkdir(parents=True, exist_ok=True)
    save(state_of(checkpoint), storage_writer=FileSystemWriter(folder), no_dist=True)


# ── Orbax ──


def _trees_of(checkpoint: CheckpointPieces) -> Any:
    """What `holdfast.pytrees` has tracked, as one tree of arrays of numpy."""
    contents = checkpoint.contents
    if modules := modules_of(contents):
        raise Error(
            "export-unavailable",
            f"{modules[0]} cannot be written as a checkpoint of Orbax",
            why="it is a module of PyTorch; Orbax's checkpoints are trees of arrays",
            help="holdfast checkpoint export --form safetensors",
        )
    leaves: dict[str, Any] = {}
    pieces: dict[str, dict[tuple[int, ...], Any]] = {}
    for rank in sorted(contents.trees):
        for path, value in contents.trees[rank].items():
            if not isinstance(value, list):
                leaves.setdefault(path, value)
                continue
            mine = pieces.setdefault(path, {})
            for ref in value:
                if tuple(ref.leaf.at) not in mine:
                    mine[tuple(ref.leaf.at)] = _as_numpy(checkpoint.value(ref))
    return orbax_form.nested(
        {**leaves, **{path: orbax_form.assembled(found) for path, found in pieces.items()}}
    )


def _as_numpy(value: Any) -> Any:
    """Also of types that numpy does not have, which are those of JAX then."""
    if not isinstance(value, torch.Tensor):
        return value
    name = str(value.dtype).removeprefix("torch.")
    if name != "bfloat16" and not name.startswith("float8"):
        return value.numpy()
    import ml_dtypes

    plain = value.view(torch.int16 if name == "bfloat16" else torch.uint8).numpy()
    return plain.view(getattr(ml_dtypes, name))


# ── safetensors ──


def _write_safetensors(
    checkpoint: CheckpointPieces, store: CheckpointStore, limit: int | None
) -> None:
    items = list(_model_tensors(checkpoint))
    shards = list(_shards(items, limit))
    if limit is None or len(shards) == 1:
        _write_file(checkpoint, store, "model.safetensors", items)
        return
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_file(checkpoint, store, name, shard)
        where |= {item.name: name for item in shard}
    total = sum(item.bytes for item in items)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    store.put("model.safetensors.index.json", json.dumps(index, indent=2).encode())


def _model_tensors(checkpoint: CheckpointPieces) -> Iterator[_Item]:
    """Parameters and buffers; of several models with the name of each in front."""
    modules = modules_of(checkpoint.contents)
    tree = consolidated(checkpoint.contents)
    for module in modules:
        prefix = f"{module}." if len(modules) > 1 else ""
        for name, ref in tree[module].items():
            if isinstance(ref, Ref) and ref.leaf.kind == "t":
                yield _item(f"{prefix}{name}", ref)


def _item(name: str, ref: Ref) -> _Item:
    leaf = ref.leaf
    if leaf.dtype not in _TYPES:
        raise Error(
            "export-unavailable",
            f"{name} cannot be written as safetensors",
            why=f"the format does not support dtype {leaf.dtype}",
            help="holdfast checkpoint export --form torch",
        )
    shape = leaf.shape if leaf.own else leaf.whole
    item_bytes = torch.empty(0, dtype=getattr(torch, leaf.dtype)).element_size()
    return _Item(name, ref, tuple(shape), int(np.prod(shape, dtype=np.int64)) * item_bytes)


def _shards(items: Iterable[_Item], limit: int | None) -> Iterator[list[_Item]]:
    shard: list[_Item] = []
    total = 0
    for item in items:
        if shard and limit is not None and total + item.bytes > limit:
            yield shard
            shard, total = [], 0
        shard.append(item)
        total += item.bytes
    yield shard


def _write_file(
    checkpoint: CheckpointPieces, store: CheckpointStore, name: str, items: list[_Item]
) -> None:
    head = _header(items)
    tensors = (_bytes_of(checkpoint.whole(item.ref)) for item in items if item.bytes)
    _put(store, name, itertools.chain([memoryview(_LENGTH.pack(len(head)) + head)], tensors))


def _header(items: list[_Item]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for item in items:
        header[item.name] = {
            "dtype": _TYPES[item.ref.leaf.dtype],
            "shape": list(item.shape),
            "data_offsets": [at, at + item.bytes],
        }
        at += item.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)  # the bytes that follow are aligned


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]


def _put(store: CheckpointStore, name: str, parts: Iterable[memoryview]) -> None:
    with store.create(name) as upload:
        for part in parts:
            for at in range(0, len(part), _WRITE_BYTES):
                upload.write(part[at : at + _WRITE_BYTES])
