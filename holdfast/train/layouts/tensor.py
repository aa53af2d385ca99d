"""Tensor parallel by a plan: which modules are divided, and how.

A plan maps names of modules (`*` stands for one part of a name) to the words of Hugging Face's
plans, or to styles of `torch.distributed.tensor.parallel`. A model may declare its own, as those of
Hugging Face do. With `sequence_parallel` the words mean the same products, with the activations
between them divided along the sequence: norms compute on a part of it, products gather it.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from holdfast.dimensions import divisors
from holdfast.errors import Error
from holdfast.train.layouts.blocks import has_parameters

Plan = Mapping[str, str | ParallelStyle]

COLUMNS, ROWS = ("colwise", "local_colwise"), ("rowwise", "local_rowwise")
FIRST = ("rowwise_rep", "embedding_rowwise")  # given tokens, which all have
LAST = ("colwise_rep", "colwise_gather_output")  # gives scores, which all get
NORM = "sequence_parallel"
HEADS = "replicated_with_grad_allreduce"  # a norm of each head, (batch, places, heads, width)
EXPERTS = ("experts", "ep_dispatch_experts")  # of `ep`, nothing to `tp`
WORDS = (*COLUMNS, *ROWS, *FIRST, *LAST, NORM, HEADS, EXPERTS[0])
_DECLARED = ("tp_plan", "_tp_plan", "base_model_tp_plan")
_HEADS = (
    *("heads", "n_heads", "num_heads", "n_head", "num_attention_heads"),
    *("kv_heads", "n_kv_heads", "num_kv_heads", "num_key_value_heads"),
)


def plan_of(model: nn.Module, given: Plan | None) -> Plan:
    """The plan that is given, or the one that the model declares.

    Raises `Error` (layout-invalid) where there is none.
    """
    plan = declared_by(model, _DECLARED) if given is None else given
    if given is None and not plan:
        raise Error(
            "layout-invalid",
            "there is no plan for tensor parallelism",
            why=f"parallel.tp is more than 1; the model declares none ({', '.join(_DECLARED)})",
            help='run.parallelize(model, plan={"layers.*.mlp.up": "colwise", ...})',
        )
    return plan


def declared_by(model: nn.Module, names: Sequence[str]) -> Plan:
    """The plan that the model or its configuration has under one of these names; or an empty
    one."""
    for owner in (model, getattr(model, "config", None)):
        for name in names:
            if declared := getattr(owner, name, None):
                return dict(declared)
    return {}


def styles(model: nn.Module, plan: Plan, *, sequence: bool) -> dict[str, ParallelStyle]:
    """The style of each module that the plan names, by its whole name.

    Raises `Error` (layout-invalid) for names that the model does not have, and for unknown words.
    """
    names = [name for name, _ in model.named_modules()]
    found: dict[str, ParallelStyle] = {}
    for pattern, word in plan.items():
        meant = matching(model, pattern, names)
        if not meant:
            raise unknown_name(pattern, names)
        style = _style(word, sequence=sequence)
        found |= dict.fromkeys(meant, style) if style is not None else {}
    if sequence and not any(w == NORM or isinstance(w, SequenceParallel) for w in plan.values()):
        raise Error(
            "layout-invalid",
            "sequence_parallel: the plan has no module that computes on a part of the sequence",
            why="what lies between the matrix products has to be named, too",
            help=f'add the norms: "layers.*.norm": "{NORM}"; embeddings are "{FIRST[0]}"',
        )
    return found


def matching(model: nn.Module, pattern: str, names: list[str]) -> list[str]:
    """Those of the names that a pattern of a plan means."""
    prefix = getattr(model, "base_model_prefix", "")
    return _matching(pattern, names) or _matching(f"{prefix}.{pattern}", names)


def _matching(pattern: str, names: list[str]) -> list[str]:
    wanted = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    return [name for name in names if wanted.fullmatch(name)]


def unknown_name(pattern: str, names: list[str]) -> Error:
    """The plan names what the model does not have."""
    close = difflib.get_close_matches(pattern, names, n=1, cutoff=0.3)
    return Error(
        "layout-invalid",
        f"the plan names {pattern!r}, which the model does not have",
        why=f"the nearest name of a module is {close[0]}" if close else "no name is near it",
        help="print([name for name, _ in model.named_modules()])   (`*` stands for one part)",
    )


def _style(word: str | ParallelStyle, *, sequence: bool) -> ParallelStyle | None:
    """What a word means; None for what stays whole without `sequence`."""
    between = Shard(1) if sequence else Replicate()
    match word:
        case ParallelStyle():
            return word
        case "colwise" | "local_colwise":
            return ColwiseParallel(input_layouts=between)
        case "rowwise" | "local_rowwise":
            return RowwiseParallel(output_layouts=between)
        case "rowwise_rep" | "embedding_rowwise":
            return RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        case "colwise_rep" | "colwise_gather_output":
            return ColwiseParallel(input_layouts=between, output_layouts=Replicate())
        case "sequence_parallel":
            return SequenceParallel() if sequence else None
        case "replicated_with_grad_allreduce":
            return SequenceParallel(sequence_dim=2, use_local_output=True)
        case "experts" | "ep_dispatch_experts":
            return None
    raise Error(
        "layout-invalid",
        f"the plan has {word!r}, which is not known",
        why=f"known words: {', '.join(WORDS)}",
        help="use one of them, or a style of torch.distributed.tensor.parallel",
    )


def require_divisible(model: nn.Module, found: Mapping[str, ParallelStyle], tp: int) -> None:
    """Raise `Error` (layout-invalid) if attention heads or divided weights are no multiple of
    `tp`."""
    counts = {name: count for name, count in _heads(model) if count % tp}
    if counts:
        heads = " and ".join(f"{count} {name}" for name, count in counts.items())
        fits = divisors(*(count for _, count in _heads(model)))
        raise _indivisible(f"{heads} cannot be divided by tp {tp}", fits)
    for name in found:
        module = model.get_submodule(name)
        size = _divided_size(module, found[name])
        if size % tp:
            what = f"{name}: its {size} rows or columns cannot be divided by tp {tp}"
            raise _indivisible(what, divisors(size))


def _heads(model: nn.Module) -> Iterator[tuple[str, int]]:
    """How many heads the attention has, by the names that models have for it."""
    for owner in (getattr(model, "config", None), *model.modules()):
        for name in _HEADS:
            count = getattr(owner, name, None)
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                yield name, count


def _divided_size(module: nn.Module, style: ParallelStyle) -> int:
    match module, style:
        case nn.Linear(), ColwiseParallel():
            return module.out_features
        case nn.Linear(), RowwiseParallel():
            return module.in_features
        case _:
            return 0


def _indivisible(what: str, fits: list[int]) -> Error:
    return Error(
        "layout-invalid",
        what,
        why="each of the ranks along tp takes the same share of a layer",
        help=f"parallel.tp can be {' or '.join(map(str, fits))}",
    )


def divide(model: nn.Module, mesh: DeviceMesh, found: Mapping[str, ParallelStyle]) -> None:
    """Divide the modules that are here: of a stage of a pipeline others are elsewhere. What is one
    parameter stays one. Raises `Error` (layout-invalid) where the plan divides it in two ways."""
    names: dict[torch.Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    here = {name: module for name, module in model.named_modules() if has_parameters(module)}
    for name, style in found.items():
        if name in here:
            parallelize_module(here[name], mesh, style)
    for first, *others in names.values():
        for other in others:
            tie_again(model, first, other)


def tie_again(model: nn.Module, first: str, other: str) -> None:
    """Have two names mean one parameter again, which was divided by both."""
    parameter, replaced = model.get_parameter(first), model.get_parameter(other)
    if replaced is parameter:
        return
    if _division(parameter) != _division(replaced):
        raise Error(
            "layout-invalid",
            f"{first} and {other} are one parameter, which the plan divides in two ways",
            why="the two copies would diverge",
            help=f'divide both alike: an embedding by "{FIRST[0]}" and a head by "{LAST[0]}"; or '
            "do not tie them (tie_word_embeddings: false)",
        )
    owner, _, key = other.rpartition(".")
    model.get_submodule(owner).register_parameter(key, parameter)


def _division(parameter: torch.Tensor) -> object:
    return getattr(parameter, "placements", None)
