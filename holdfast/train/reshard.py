"""Turning a snapshot or checkpoint of any layout into the state of this rank in this layout.

What is wanted is what `Tracked.capture` would give here: two trees, with the local part of every
tensor. PyTorch's DefaultLoadPlanner, given the pieces of each tensor as its Metadata, says which
box of which piece goes where. What belongs to a rank alone comes from the rank with the same
number, or, where there were fewer, from that number modulo theirs. `Assembly` makes the trees with
empty places and the list of reads that fill them; nothing of the objects themselves is touched, so
that a source which turns out to be damaged leaves no trace.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from holdfast.checkpoint.codec import flatten, unflatten
from holdfast.checkpoint.contents import GRADIENTS, LOOP, RANDOM, Contents, Ref, buffers_of
from holdfast.checkpoint.tensors import is_leaf, local_part
from holdfast.train.load_failure import FailureKind
from holdfast.train.optimizers import Meant
from holdfast.train.read_plan import MisfitError, ReadLater, ReadPlan, type_of
from holdfast.train.sources import StateSource
from holdfast.train.tracked import Tracked, Tree

logger = logging.getLogger(__name__)

TOLD = 3  # differences, of those that a model has from what was saved
_IGNORED = frozenset({"params", "initial_lr"})  # the second one is a scheduler's


class Assembly:
    """The state of this rank, made from what a source has."""

    def __init__(self, tracked: Tracked, source: StateSource, rank: int) -> None:
        """Raises `MisfitError`."""
        self._tracked = tracked
        self._contents: Contents = source.contents
        self._rank = rank
        self._order = self._contents.order_for(rank)
        self._plan = ReadPlan(source, rank)
        if not self._contents.complete:
            raise MisfitError("parts of some ranks are missing", FailureKind.DAMAGED)
        self._parameters = tracked.names.now()
        self._differences: list[str] = []
        self._tree: Tree = {name: self._module(name) for name in tracked.modules}
        self._tree |= {buffers_of(name): self._buffers(name) for name in tracked.modules}
        if self._differences:
            raise MisfitError(_told(self._differences))
        self._tree |= {name: self._optimizer(name) for name in tracked.optimizers}
        rest = [name for name in tracked.others if name not in tracked.optimizers]
        self._tree |= {name: self._plan.tree(self._find(name)) for name in [*rest, RANDOM]}
        self._tree |= {GRADIENTS: self._gradients()}
        self._tree |= {LOOP: self._plan.tree(self._contents.trees[self._order[0]].get(LOOP, {}))}
        self.reads = self._plan.reads()

    def trees(self) -> tuple[Tree, Tree]:
        """Both trees, once everything has been read."""
        known = lambda value: isinstance(value, ReadLater) or is_leaf(value)  # noqa: E731
        plain, leaves, _ = flatten(self._tree, known, "")
        values = [leaf.value if isinstance(leaf, ReadLater) else leaf for leaf in leaves]
        tree: Tree = unflatten(plain, values)
        return tree, tree

    # ── modules ──

    def _module(self, name: str) -> Tree:
        prefix = f"{name}."
        return {
            path.removeprefix(prefix): self._noted(self._parameter, path, parameter)
            for path, parameter in self._parameters.items()
            if path.startswith(prefix)
        }

    def _noted(self, found: Callable[..., Any], *about: Any) -> Any:
        """What was found; a misfit is noted, so that it can be told with the others."""
        try:
            return found(*about)
        except MisfitError as error:
            if error.kind is not FailureKind.MISFIT:
                raise
            self._differences.append(str(error))
            return None

    def _parameter(self, path: str, parameter: torch.Tensor) -> Any:
        if path in self._contents.pieces:
            return self._plan.part(path, parameter)
        owner, _, key = path.partition(".")
        found = self._contents.trees[self._order[0]].get(owner, {}).get(key)
        return self._own_part(path, found, local_part(parameter))

    def _own_part(self, path: str, found: Any, here: Any) -> ReadLater:
        """A part that means something on the same rank of the same layout only."""
        if not isinstance(found, Ref):
            raise MisfitError(f"it has no {path}")
        if self._contents.world_size != self._tracked.world_size:
            raise MisfitError(
                f"it has {path} once for each of {self._contents.world_size} ranks, and nothing "
                "records whether these are replicas or shards of one tensor",
                FailureKind.UNCLEAR,
            )
        if found.leaf.shape != tuple(here.shape):
            raise MisfitError(f"{path} is {found.leaf.shape} there and {tuple(here.shape)} here")
        return self._plan.leaf(found)

    def _buffers(self, name: str) -> Tree:
        """Of each buffer the copy of the best rank that has it."""
        now = self._tracked.buffers(name)
        return {
            kind: {
                key: self._noted(self._buffer, name, kind, key, value)
                for key, value in tree.items()
            }
            for kind, tree in now.items()
        }

    def _buffer(self, name: str, kind: str, key: str, now: Any) -> Any:
        for rank in self._order:
            tree = self._contents.trees[rank].get(buffers_of(name), {}).get(kind, {})
            if key in tree:
                return self._plan.tree(_fitting(tree[key], now, f"{name}.{key}"))
        raise MisfitError(f"it has no buffer {name}.{key}")

    def _gradients(self) -> Tree:
        """Gradients that were pending, as far as they mean something in this layout."""
        found = self._contents.trees[self._order[0]].get(GRADIENTS, {})
        kept: Tree = {}
        left_out = 0
        for path, parameter in self._parameters.items():
            name, value = f"{GRADIENTS}.{path}", found.get(path)
            if name in self._contents.pieces:
                kept[path] = self._plan.part(name, parameter)
            elif value is None and path in found:
                kept[path] = None
            elif value is not None and self._contents.world_size == self._tracked.world_size:
                kept[path] = self._own_part(path, value, local_part(parameter))
            elif value is not None:
                left_out += 1
        if left_out and self._rank == 0:
            logger.warning(
                "gradients of %d parameters are discarded: each of %d ranks had accumulated its "
                "own since its optimizer's last step, and now there are %d ranks",
                *(left_out, self._contents.world_size, self._tracked.world_size),
            )
        return kept

    # ── optimizers ──

    def _optimizer(self, name: str) -> Tree:
        trees = self._distinct(name)
        state: Tree = {}
        for tree in trees:
            for key, values in tree["state"].items():
                state.setdefault(key, values)
        now = self._tracked.optimizer_state(name)
        meant = self._tracked.names.meant_by(name)
        groups = [self._group(name, found, now, meant) for found in _by_position(trees)]
        here = {key: meant(key) for group in groups for key in group["params"]}
        saved = {id(parameter) for parameter in here.values()}
        held = self._tracked.names.of_optimizer(name).items()
        if lacking := [key for key, parameter in held if id(parameter) not in saved]:
            raise MisfitError(f"its optimizer {name} has no {_told(lacking)}")
        kept = {
            key: self._moments(f"{name}.state.{key}", state[key], parameter)
            for key, parameter in here.items()
            if key in state
        }
        rest = {key: value for key, value in trees[0].items() if key not in now}
        return {**self._plan.tree(rest), "state": kept, "param_groups": groups}

    def _distinct(self, name: str) -> list[Tree]:
        """The trees of one optimizer on all ranks, without repetition, our own first."""
        found = [self._contents.trees[rank].get(name) for rank in self._order]
        distinct = list({id(tree): tree for tree in found if tree is not None}.values())
        if not distinct or not all("param_groups" in tree for tree in distinct):
            raise MisfitError(f"it has no optimizer {name}")
        return distinct

    def _moments(self, path: str, values: Tree, parameter: Any) -> Tree:
        return {
            key: self._moment(f"{path}.{key}", value, parameter) for key, value in values.items()
        }

    def _moment(self, path: str, value: Any, parameter: Any) -> Any:
        if not isinstance(value, Ref):
            return self._plan.tree(value)
        leaf = value.leaf
        if leaf.own:
            here = local_part(parameter) if len(leaf.shape) else torch.empty(leaf.shape)
            return self._own_part(path, value, here)
        if leaf.kind == "t" and len(leaf.whole) and leaf.whole == tuple(parameter.shape):
            return self._plan.moment(leaf.name, leaf.dtype, parameter)
        return self._plan.tree(value)

    def _group(self, name: str, found: list[Tree], now: Tree, meant: Meant) -> Tree:
        """A group of parameters as the ranks had it, with those that are on this rank."""
        settings = found[0]
        if settings.keys() - _IGNORED != now["param_groups"][0].keys() - _IGNORED:
            raise MisfitError(f"its {name} is of another kind of optimizer")
        names = dict.fromkeys(key for group in found for key in group["params"])
        here = [key for key in names if meant(key) is not None]
        # under pipeline parallelism others are on other ranks
        lost = [key for key in names if key not in here]
        if not self._tracked.replicated:
            lost = [key for key in lost if not isinstance(key, str)]
        if lost:
            raise MisfitError(
                f"its optimizer {name} has parameters of no tracked module: {_told(lost)}"
            )
        return {**self._plan.tree({**settings, "params": []}), "params": here}

    # ── everything else ──

    def _find(self, name: str) -> Any:
        for rank in self._order:
            if name in self._contents.trees[rank]:
                return self._contents.trees[rank][name]
        raise MisfitError(f"it has no {name}")


def _fitting(found: Any, now: Any, path: str) -> Any:
    """What was found, if it has the form of what is there now."""
    if isinstance(now, torch.Tensor) != (isinstance(found, Ref) and found.leaf.kind == "t"):
        raise MisfitError(f"its {path} is something else")
    if isinstance(now, torch.Tensor):
        part = local_part(now)
        if (found.leaf.shape, found.leaf.dtype) != (tuple(part.shape), type_of(part)):
            here = f"{tuple(part.shape)} {type_of(part)}"
            there = f"{found.leaf.shape} {found.leaf.dtype}"
            raise MisfitError(f"{path} is {there} there and {here} here")
    return found


def _by_position(trees: list[Tree]) -> Iterator[list[Tree]]:
    """The groups of an optimizer, each as all ranks that have one there had it, our own first."""
    for number in range(max(len(tree["param_groups"]) for tree in trees)):
        yield [t["param_groups"][number] for t in trees if number < len(t["param_groups"])]


def _told(differences: list[Any]) -> str:
    """The first few."""
    rest = len(differences) - TOLD
    return "; ".join(map(str, differences[:TOLD])) + (f"; and {rest} more" if rest > 0 else "")
