"""The state of a module in two: its parameters, and everything else that it has."""

from collections.abc import Callable
from typing import Any

import torch

from holdfast.checkpoint.tensors import is_distributed, local_part

Tree = dict[str, Any]
Canonical = Callable[[str], str]  # a name without those of wrappers


def split(module: torch.nn.Module, canonical: Canonical) -> tuple[Tree, Tree]:
    """A module's parameters, and everything else of it: buffers, also those it would not save."""
    names = {raw for raw, _ in module.named_parameters(remove_duplicate=False)}
    state = module.state_dict(keep_vars=True)  # detaching a DTensor costs as much as a copy
    kept = {key: value for key, value in state.items() if key not in names}
    loose = {key: buffer for key, buffer in module.named_buffers() if key not in kept}
    parameters = {canonical(key): value for key, value in state.items() if key in names}
    buffers = {
        part: {canonical(key): value for key, value in tree.items()}
        for part, tree in (("state", kept), ("not_persistent", loose))
    }
    return parameters, buffers


def load(module: torch.nn.Module, canonical: Canonical, parameters: Tree, buffers: Tree) -> None:
    """Put both back. Tensors are the parts that lie here."""
    now = module.state_dict(keep_vars=True)
    given = {**parameters, **buffers["state"]}
    whole = {raw: given[canonical(raw)] for raw in now if not is_distributed(now[raw])}
    with torch.no_grad():
        for raw in now.keys() - whole.keys():
            now[raw]._local_tensor.copy_(given[canonical(raw)])
        module.load_state_dict(whole, strict=len(whole) == len(now))
        here = {canonical(raw): buffer for raw, buffer in module.named_buffers()}
        for key, value in buffers["not_persistent"].items():
            local_part(here[key]).copy_(value)
