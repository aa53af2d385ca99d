"""Lightning's Trainer: one line more, `callbacks=[FitCallback()]`.

    from holdfast.integrations.lightning import FitCallback

    Trainer(max_epochs=3, callbacks=[FitCallback()]).fit(module, loader)

Module, optimizers, schedulers, scaler, random numbers, the progress of all loops, the state of
callbacks and the place in the data are kept in memory after each batch; validation and saving are
sections. A step of ours is a batch of the training loop with the validation that follows it.

A restarted worker goes straight to the batch that is next, as if nothing had happened: hooks of an
epoch that was begun are not called again. What Lightning itself does with a checkpoint from within
an epoch is to begin the epoch's data anew, unless the loader knows its position.

Means over an epoch (`self.log(..., on_epoch=True)`) are kept, too. Metric objects of torchmetrics
are kept as far as their states are persistent, which by default they are not.

A checkpoint of its own that the script resumes from is not read where a snapshot waits: all that
is in it would be replaced at once. If a hook of the script reads it (`on_load_checkpoint`), or may
look at what was read (`on_fit_start`), it is.

Loops have no hooks for all that. While the training lasts, some of their methods are wrapped, on
the objects and not on the classes; which ones are there is looked at before.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import lightning
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import callbacks
from lightning.pytorch.loops.fit_loop import RestartStage, _FitLoop
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.progress import _BaseProgress
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden

from holdfast.integrations import drive, place, switch
from holdfast.train import random_state

NAME = "lightning.Trainer"
LEAST, BELOW = (2, 5), (3, 0)
ENDLESS = 1 << 53
_TUNER = "lightning.pytorch.tuner"
_HOW_LOGGED = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "add_dataloader_idx")
_LOOKING_ON = (callbacks.ModelSummary, callbacks.Timer)  # in `on_fit_start`
_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
_NEEDED = (
    *((_FitLoop, name) for name in ("run", "on_run_start", "on_advance_start", "on_run_end")),
    (_FitLoop, "_load_combined_loader_states"),
    *((_TrainingEpochLoop, name) for name in ("reset", "on_run_start", "on_advance_end")),
    (_CheckpointConnector, "_restore_modules_and_callbacks"),
)


class FitCallback(callbacks.Callback):  # type: ignore[misc]
    """Keeps the training of the Trainer it is given to. `reread`: an iterable dataset that does
    not know its position is read from its beginning again after a restart.

    Raises `Error` (trainer-unsupported) for a version of lightning that it does not know.
    """

    def __init__(self, *, reread: bool = False) -> None:
        _require_known()
        self.reread = reread
        self.asked = True  # by a line in the script
        self.kept: _Fit | None = None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Numbers of the step."""
        if self.kept is not None:
            self.kept.log(outputs)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Gradients are complete."""
        if self.kept is not None and self.kept.drive is not None:
            self.kept.norm = _norm(pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The next training is another one, wherever this one has failed."""
        self.kept = None


class _Fit:
    """One training, and its state besides tensors: `state_dict()`."""

    def __init__(self, loop: Any, reread: bool, asked: bool) -> None:
        self.norm: Any = None
        self._asked = asked
        self._loop, self._epoch_loop = loop, loop.epoch_loop
        self._trainer = loop.trainer
        self._reread = reread
        self.drive: drive.Drive | None = None
        self.own: Callable[[], None] | None = None
        """Reads a checkpoint of Lightning's that was left unread, because a snapshot waits."""
        self.own_path: Any = None
        self._place: place.LoaderPlace | None = None
        self._restored: dict[str, Any] = {}
        self._limit = -1  # steps
        self._sent: dict[str, Any] | None = None  # the strategy's own options of DDP, set aside
        self._goes_on = False  # the epoch under way was begun by an earlier attempt
        trainer = loop.trainer
        self._wraps: list[tuple[Any, str, Callable[..., Any]]] = [
            (loop, "_load_combined_loader_states", self._find_place),
            (loop, "on_run_start", self._begin),
            (loop, "on_advance_start", self._epoch_starts),
            (loop, "on_run_end", self._end),
            (loop.epoch_loop, "reset", self._reset),
            (loop.epoch_loop, "on_run_start", self._begin_data),
            (loop.epoch_loop, "on_advance_end", self._step_ends),
            (loop.epoch_loop.val_loop, "run", partial(self._within, "eval")),
            (trainer, "save_checkpoint", partial(self._within, "save")),
        ]

    def wrap(self) -> None:
        """From now on."""
        for owner, name, ours in self._wraps:
            vars(owner)[name] = partial(ours, getattr(owner, name))

    def unwrap(self) -> None:
        """No longer."""
        for owner, name, _ in self._wraps:
            vars(owner).pop(name, None)

    # ── before the first step ──

    def _find_place(self, plain: Callable[[], None]) -> None:
        loaders = self._loop._combined_loader.flattened
        if len(loaders) != 1 or not place.is_loader(loaders[0]):
            kinds = ", ".join(type(one).__qualname__ for one in loaders)
            why = f"it needs one DataLoader to train on, not {kinds}"
            if self._asked:
                raise drive.unsupported_setting(NAME, why)
            drive.left_alone(NAME, why)
            self.unwrap()
            self._take_unsent()
            if self.drive is not None:
                self.drive.unsent.settle(restored=False)
            self._load_own()
            plain()
            return
        self._place = place.LoaderPlace(loaders[0], ahead=1, reread=self._reread)
        plain()

    def leave_unsent(self) -> None:
        """The model that the strategy makes next is not sent to all ranks, if it is one of DDP."""
        strategy = self._trainer.strategy
        if isinstance(strategy, DDPStrategy):
            self._sent = strategy._ddp_kwargs
            strategy._ddp_kwargs = {"init_sync": False} | self._sent

    def _take_unsent(self) -> None:
        strategy = self._trainer.strategy
        if self._sent is not None and self.drive is not None:
            strategy._ddp_kwargs, self._sent = self._sent, None
            self.drive.unsent.take(strategy.model)

    def _begin(self, plain: Callable[[], None]) -> None:
        assert self._place is not None
        self.drive = self.drive or drive.Drive(NAME)
        self._take_unsent()
        step = self.drive.track(**self._objects())
        if step:
            self._put_back(self._restored)
            if self.own is not None:  # callbacks do not remove what the training began with
                self._trainer._checkpoint_connector._ckpt_path = self.own_path
        elif self.own is not None:  # the snapshot was damaged
            self._load_own()
            self._loop._combined_loader = None  # its position is in that checkpoint
            self._loop.setup_data()
            self._loop.reset()
        self.drive.begin(self._epoch_loop.batch_progress.total.completed, ENDLESS)
        plain()

    def _load_own(self) -> None:
        if self.own is not None:
            self.own()
            self.own = None
            self._trainer._checkpoint_connector.restore_training_state()
            self._trainer._checkpoint_connector.resume_end()

    def _objects(self) -> dict[str, Any]:
        strategy = self._trainer.strategy
        schedulers = [config.scheduler for config in self._trainer.lr_scheduler_configs]
        found = {
            "model": strategy.model,
            **{f"optimizer_{n}": one for n, one in enumerate(strategy.optimizers)},
            **{f"scheduler_{n}": one for n, one in enumerate(schedulers)},
            "scaler": getattr(strategy.precision_plugin, "scaler", None),
            "trainer": self,
        }
        return {name: thing for name, thing in found.items() if thing is not None}

    def _put_back(self, kept: dict[str, Any]) -> None:
        # A checkpoint of its own may have been loaded before. The loop's own setter would say that
        # it restarts wherever `max_steps` is given: then the data of later epochs is not begun.
        _Loop.restarting.fset(self._loop, False)
        for loop in (self._loop, self._epoch_loop, self._epoch_loop.val_loop):
            loop._loaded_from_state_dict = loop._resuming_from_checkpoint = False
            loop.reset_restart_stage()
        for name, progress in _progress_of(self._loop, "fit"):
            progress.load_state_dict(kept["progress"][name])
        self._epoch_loop._batches_that_stepped = kept["stepped"]
        call._call_callbacks_load_state_dict(self._trainer, {"callbacks": kept["callbacks"]})
        for name, metrics in kept["metrics"].items():
            on_device = move_data_to_device(metrics, self._trainer.strategy.root_device)
            getattr(self._trainer._logger_connector, name).update(on_device)
        assert self._place is not None
        self._place.load_state_dict(kept["place"])
        self._place.after_resume = self._restore_random
        self._goes_on = True
        # a loop that has reached its last step still ends its epoch
        self._limit, self._epoch_loop.max_steps = self._epoch_loop.max_steps, -1

    def _restore_random(self) -> None:
        assert self.drive is not None
        random_state.restore(self._restored["random"], self.drive.run.device)

    # ── the steps ──

    def _epoch_starts(self, plain: Callable[[], None]) -> None:
        if self._goes_on:
            self._epoch_loop.max_steps = self._limit
            self._trainer.should_stop = self._restored["stop"]
            self._loop._restart_stage = RestartStage.RESTARTED_MID_EPOCH
        plain()

    def _reset(self, plain: Callable[[], None]) -> None:
        if not self._goes_on:
            plain()

    def _begin_data(self, plain: Callable[[Any], None], fetcher: Any) -> None:
        if not self._goes_on:
            plain(fetcher)
            return
        self._goes_on = False
        for one in self._restored["logged"]:
            _log_again(self._epoch_loop._results, one, self._trainer.strategy)
        self._trainer._logger_connector._first_loop_iter = True
        if self._epoch_loop.done:
            assert self._place is not None
            self._place.forget()
            self._restore_random()
            return
        if self._trainer.current_epoch == 0:  # later ones are begun by the loop itself
            iter(fetcher)
        plain(fetcher)

    def log(self, outputs: Any) -> None:
        """Of the step under way."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        norm, self.norm = self.norm, None
        if self.drive is not None and isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self.drive.run.log(loss=loss.detach().clone(), grad_norm=norm)

    def _step_ends(self, plain: Callable[[Any], None], fetcher: Any) -> None:
        plain(fetcher)
        assert self.drive is not None and self._place is not None
        self._place.used += 1
        self.drive.step_done()

    def _end(self, plain: Callable[[], None]) -> None:
        assert self.drive is not None
        self.drive.end()
        plain()

    def _within(self, name: str, plain: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if self.drive is None:
            return plain(*given, **named)
        with self.drive.section(name):
            return plain(*given, **named)

    # ── the state ──

    def state_dict(self) -> dict[str, Any]:
        """What a trainer knows besides what is tracked by itself."""
        assert self.drive is not None and self._place is not None
        return {
            "progress": {n: one.state_dict() for n, one in _progress_of(self._loop, "fit")},
            "stepped": self._epoch_loop._batches_that_stepped,
            "callbacks": call._call_callbacks_state_dict(self._trainer),
            "metrics": {
                name: dict(getattr(self._trainer._logger_connector, name)) for name in _METRICS
            },
            "logged": _logged(self._epoch_loop._results),
            "place": self._place.state_dict(),
            "random": random_state.capture(self.drive.run.device),
            "stop": self._trainer.should_stop,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Kept until the loops can take it."""
        self._restored = state


def _progress_of(loop: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every counter of a loop and of the loops in it."""
    for key, thing in vars(loop).items():
        if isinstance(thing, _BaseProgress):
            yield f"{name}.{key}", thing
        elif isinstance(thing, _Loop):
            yield from _progress_of(thing, f"{name}.{key}")


def _logged(results: Any) -> list[dict[str, Any]]:
    """What `self.log()` has been given in the epoch so far, and how it is to be reduced."""
    return [
        {
            **{name: getattr(one.meta, name) for name in _HOW_LOGGED},
            "reduce_fx": one.meta.reduce_fx.__name__,
            "sync_dist": one.meta.sync.should,
            "rank_zero_only": one.meta.sync.rank_zero_only,
            "value": one.value.clone(),
            "count": int(getattr(one, "cumulated_batch_size", 0)),
            "newest": one._forward_cache,
        }
        for one in results.values()
        if one.is_tensor and one.meta.dataloader_idx is None
    ]


def _log_again(results: Any, kept: dict[str, Any], strategy: Any) -> None:
    """Log something under this name as the script has, and put back what it came to, on the device
    where more is added to it."""
    options = move_data_to_device(dict(kept), strategy.root_device)
    value, count, newest = (options.pop(name) for name in ("value", "count", "newest"))
    zero = torch.zeros_like(value)
    results.log(**options, value=zero, sync_dist_fn=strategy.reduce, batch_size=1)
    one = results[f"{kept['fx']}.{kept['name']}"]
    one.value, one._forward_cache = value, newest
    if one.meta.is_mean_reduction:
        one.cumulated_batch_size = torch.tensor(count, device=value.device)


def _norm(module: Any) -> torch.Tensor | None:
    """Of all gradients; None where they are sharded, because others would have to be asked."""
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    if not gradients or any(type(one) is not torch.Tensor for one in gradients):
        return None
    return torch.nn.utils.get_total_norm(gradients)


# ── in front of the loop ──────────────────────────────────────────────────────────────────────


def _require_known() -> None:
    drive.require_version("lightning", LEAST, BELOW)
    missing = [name for owner, name in _NEEDED if not hasattr(owner, name)]
    if missing:
        raise drive.unsupported("lightning", lightning.__version__, f" with {missing[0]}()")


def _why_not(trainer: Any) -> str:
    """What of this training cannot be kept; empty if all can."""
    strategy = type(trainer.strategy).__name__
    if strategy in ("FSDPStrategy", "DeepSpeedStrategy", "XLAStrategy", "XLAFSDPStrategy"):
        return (
            f"the states of a {strategy} are not those of PyTorch; ModelParallelStrategy shards "
            "with fully_shard"
        )
    return drive.why_not_here()


_switch = switch.Switch(NAME, _require_known, FitCallback)
switch_on = _switch.on


def _callback_of(trainer: Any) -> FitCallback | None:
    found: FitCallback | None = _switch.callback_in(trainer.callbacks, partial(_why_not, trainer))
    return found


def _hooks_read(trainer: Any) -> bool:
    """Whether the script takes something of its own from a checkpoint of Lightning's, or has a hook
    that sees, before the loop begins, what was read. A data module has no `on_load_checkpoint`."""
    module, data = trainer.lightning_module, trainer.datamodule
    read, sees = "on_load_checkpoint", "on_fit_start"
    mine = [(name, module, lightning.LightningModule) for name in (read, sees)]
    mine += [(read, one, callbacks.Callback) for one in trainer.callbacks]
    acting = (one for one in trainer.callbacks if not isinstance(one, _LOOKING_ON))
    mine += [(sees, one, callbacks.Callback) for one in acting]
    mine += [("load_state_dict", data, lightning.LightningDataModule)] if data is not None else []
    return any(is_overridden(name, one, kind) for name, one, kind in mine)


def _awaited(trainer: Any) -> _Fit | None:
    """The training whose snapshot makes reading a checkpoint superfluous, if there is one."""
    here = drive.under_holdfast() and not drive.is_taken() and drive.has_snapshots()
    if _hooks_read(trainer) or not trainer.strategy.reduce_boolean_decision(here, all=False):
        return None
    callback = _callback_of(trainer)
    if callback is None:
        return None
    fit = callback.kept = _Fit(trainer.fit_loop, callback.reread, callback.asked)
    fit.drive = drive.Drive(NAME)
    return fit if fit.drive.snapshot_waits() else None


def _kept_by(trainer: Any) -> tuple[FitCallback, _Fit] | None:
    """The callback that keeps this training, and the training."""
    for one in trainer.callbacks:
        if isinstance(one, FitCallback) and one.kept is not None:
            return one, one.kept
    callback = _callback_of(trainer)
    if callback is None:
        return None
    callback.kept = _Fit(trainer.fit_loop, callback.reread, callback.asked)
    return callback, callback.kept


def _wrap() -> None:
    plain, plain_read = _FitLoop.run, _CheckpointConnector._restore_modules_and_callbacks

    @wraps(plain_read)
    def _restore_modules_and_callbacks(self: Any, path: Any = None, *given: Any) -> None:
        read = partial(plain_read, self, path, *given)
        fits = self.trainer.state.fn == TrainerFn.FITTING
        fit = _awaited(self.trainer) if fits else None
        if fit is not None:
            fit.leave_unsent()
        if fit is not None and path:
            fit.own, fit.own_path = read, path
        else:
            read()

    @wraps(plain)
    def run(self: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith(_TUNER):
            return plain(self)  # to find a learning rate or a batch size; what it did is undone
        found = _kept_by(self.trainer)
        if found is None:
            return plain(self)
        callback, fit = found
        fit.wrap()
        try:
            return plain(self)
        finally:
            callback.kept = None
            fit.unwrap()

    _FitLoop.run = run
    _CheckpointConnector._restore_modules_and_callbacks = _restore_modules_and_callbacks


_wrap()
