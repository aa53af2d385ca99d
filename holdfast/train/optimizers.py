"""An optimizer's state by the names of its parameters instead of their numbers.

Numbers depend on how the parameters were listed; names mean the same for any number of ranks. The
optimizer's own `state_dict()` and `load_state_dict()` do the work, so its hooks run as ever.

An optimizer gets back the groups that it had, too: `add_param_group` during training is not run
again by a script that goes on after it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from holdfast.checkpoint.tensors import cloned, is_distributed, local_part
from holdfast.errors import Error
from holdfast.train import huge_pages

Tree = dict[str, Any]
_OURS = ("state", "param_groups")
Name = Callable[[torch.Tensor], str | None]
Meant = Callable[[Any], torch.Tensor | None]  # by a key of `by_name`


def by_name(optimizer: Optimizer, name: Name) -> Tree:
    """Its state now; a parameter without a name keeps its number."""
    state = optimizer.state_dict()
    names = _names(state, optimizer, name)
    groups = [
        {**group, "params": [names[n] for n in group["params"]]} for group in state["param_groups"]
    ]
    kept = {names.get(number, number): values for number, values in state["state"].items()}
    return {**state, "state": kept, "param_groups": groups}


def parameters(optimizer: Optimizer, name: Name) -> dict[Any, torch.Tensor]:
    """Its parameters by the keys of `by_name`."""
    listed = _parameters(optimizer.state_dict(), optimizer)
    return {name(parameter) or number: parameter for number, parameter in listed.items()}


def load(optimizer: Optimizer, state: Tree, meant: Meant, *, kept: bool = False) -> None:
    """Put a state of `by_name` back. Its tensors are the parts that lie here, and stay untouched.

    Memory that the optimizer has for it already is used: finding new costs more than the copy.
    `kept`: what it has more than that state was added in a step that was given up, and goes.

    Raises `Error` checkpoint-unusable where it has parameters that its state knows nothing of, or
    lacks some that are nowhere to be found.
    """
    _regroup(optimizer, state["param_groups"], meant, kept=kept)
    parameters = _parameters(optimizer.state_dict(), optimizer)
    numbers = {id(parameter): number for number, parameter in parameters.items()}
    groups = [
        {**group, "params": [numbers[id(meant(given))] for given in group["params"]]}
        for group in cloned(state["param_groups"])
    ]
    by_number = {}
    for given, values in state["state"].items():
        parameter = meant(given)
        number = given if parameter is None else numbers[id(parameter)]
        by_number[number] = _taken(values, parameter, optimizer.state)
    rest = {key: cloned(value) for key, value in state.items() if key not in _OURS}
    optimizer.load_state_dict({**rest, "state": by_number, "param_groups": groups})
    for number, parameter in parameters.items():
        _restore_types(optimizer.state[parameter], by_number.get(number, {}))


def _regroup(optimizer: Optimizer, groups: list[Tree], meant: Meant, *, kept: bool) -> None:
    """Give the optimizer the groups of its state."""
    wanted = [[_required(given, meant) for given in group["params"]] for group in groups]
    have = [group["params"] for group in optimizer.param_groups]
    if _identities(have) == _identities(wanted):
        return
    before = {number for group in _identities(have) for number in group}
    after = {number for group in _identities(wanted) for number in group}
    if (count := len(before - after)) and not kept:
        raise _unusable(
            f"{count} of its parameters are in no parameter group of the saved state",
        )
    for parameter in [one for one in optimizer.state if id(one) in before - after]:
        del optimizer.state[parameter]
    for parameter in (one for group in wanted for one in group):
        if id(parameter) not in before:
            parameter.requires_grad_()  # it was given to the optimizer to be trained
    for group, parameters in zip(optimizer.param_groups, wanted, strict=False):
        group["params"] = parameters
    del optimizer.param_groups[len(wanted) :]
    for group, parameters in [*zip(groups, wanted, strict=True)][len(optimizer.param_groups) :]:
        optimizer.add_param_group({**cloned(group), "params": parameters})


def _required(given: Any, meant: Meant) -> torch.Tensor:
    parameter = meant(given)
    if parameter is None:
        which = given if isinstance(given, str) else f"number {given}"
        raise _unusable(f"it contained parameter {which}, which is in no tracked module")
    return parameter


def _identities(groups: list[list[torch.Tensor]]) -> list[list[int]]:
    return [[id(parameter) for parameter in group] for group in groups]


def _unusable(why: str) -> Error:
    return Error(
        "checkpoint-unusable",
        "the parameter groups of an optimizer cannot be restored",
        why=why,
        help="give all modules whose parameters are trained to run.track()",
    )


def _names(state: Tree, optimizer: Optimizer, name: Name) -> dict[Any, Any]:
    return {n: name(p) or n for n, p in _parameters(state, optimizer).items()}


def _parameters(state: Tree, optimizer: Optimizer) -> dict[Any, torch.Tensor]:
    pairs = zip(state["param_groups"], optimizer.param_groups, strict=True)
    return {
        number: parameter
        for packed, group in pairs
        for number, parameter in zip(packed["params"], group["params"], strict=True)
    }


def _taken(values: Any, parameter: Any, states: Any) -> Any:
    """The values of one parameter as the optimizer's own, sharded like it where they have its
    form."""
    if not isinstance(values, dict) or parameter is None:
        return cloned(values)
    has = states.get(parameter, {})
    return {key: _copied(value, has.get(key), parameter) for key, value in values.items()}


def _copied(value: Any, has: Any, parameter: Any) -> Any:
    here = local_part(has)
    both = isinstance(value, torch.Tensor) and isinstance(here, torch.Tensor)
    if both and (here.shape, here.dtype) == (value.shape, value.dtype):
        here.copy_(value)
        return has
    if not _has_form_of(value, parameter):
        return cloned(value)
    own = huge_pages.copy_of(value, local_part(parameter).device)
    return distributed_like(own, parameter) if is_distributed(parameter) else own


def _has_form_of(value: Any, parameter: Any) -> bool:
    """Whether this is something for each number of the parameter, which belongs beside it."""
    shape = local_part(parameter).shape
    return isinstance(value, torch.Tensor) and value.shape == shape and len(shape) > 0


def distributed_like(local: torch.Tensor, parameter: Any) -> Any:
    """This part as a DTensor that is sharded like `parameter`."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _restore_types(loaded: Tree, saved: Tree) -> None:
    """load_state_dict casts to the parameter's type; a wider state would lose its last bits."""
    for name, value in saved.items():
        if isinstance(value, torch.Tensor) and loaded[name].dtype != value.dtype:
            loaded[name] = value.to(loaded[name].device)
