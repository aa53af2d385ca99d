"""Hugging Face's Trainer, and what is built on it (TRL): one line more, `callbacks=[Callback()]`.

    from holdfast.integrations.transformers import Callback

    trainer = Trainer(model, args, train_dataset=data, callbacks=[Callback()])
    trainer.train()

Model, optimizer, scheduler, scaler, random numbers, the trainer's own counters, the state of its
callbacks and the place in the data are kept in memory after each step; evaluation and saving are
sections. A restarted worker goes on where the Trainer itself resumes from a checkpoint, by the same
means, with the difference that the place in the data is exact (`place`).

A step of ours ends after what the Trainer does at the end of its own, logging, evaluating and
saving, so that whoever dies within does these again.

The Trainer's loop has no hook for all that. While it trains, some of its methods are wrapped, on
the object and not on the class; which ones are there is looked at before the first step.
"""

import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Mapping
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import Any

import torch
import transformers.trainer
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME, _is_peft_model
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from holdfast.integrations import drive, place, switch
from holdfast.train import random_state

logger = logging.getLogger(__name__)
NAME = "transformers.Trainer"
LEAST, BELOW = (5, 0), (6, 0)
_TRAINS = "transformers.trainer", "train"
_OURS = "holdfast"  # what the Trainer takes for a checkpoint to resume from
_NEEDED = (
    *("_inner_training_loop", "_init_training_state", "_prepare_for_training", "_run_epoch"),
    *("_maybe_log_save_evaluate", "get_batch_samples", "_load_rng_state", "_evaluate"),
    *("_save_checkpoint", "training_step", "get_train_dataloader"),
    *("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler"),
)


class Callback(TrainerCallback):  # type: ignore[misc]
    """Keeps the training it is given to. `reread`: an iterable dataset that does not know its
    position is read from its beginning again after a restart.

    Raises `Error` (trainer-unsupported) for a version of transformers that it does not know.
    """

    def __init__(self, *, reread: bool = False) -> None:
        _require_known()
        self.reread = reread
        self.asked = True  # by a line in the script
        self.kept: _Kept | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The Trainer has reset what it counts."""
        if self.kept is not None:
            self.kept.train_begins(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """There are no more steps."""
        if self.kept is not None:
            self.kept.drive.end()


class _Kept:
    """One training of one Trainer, and its state besides tensors: `state_dict()`."""

    def __init__(self, trainer: Any, callback: Callback) -> None:
        self._trainer = trainer
        self._callback = callback
        self._place: place.LoaderPlace | None = None
        self._epoch = 0
        self._restored: dict[str, Any] = {}
        self._prepared: Any = None
        self._loader: Any = None
        self._loss: Any = None
        self._tokens = 0
        self._log = LogText()
        self.read_unread: Callable[[], object] = lambda: None
        """Reads a model of the Trainer's that was left unread, because a snapshot waits."""
        self.wrapped: dict[str, Callable[..., Any]] = {
            "get_train_dataloader": self._get_train_dataloader,
            "_init_training_state": self._init_training_state,
            "_prepare_for_training": self._prepare_for_training,
            "_run_epoch": self._run_epoch,
            "get_batch_samples": self._get_batch_samples,
            "training_step": self._training_step,
            "_maybe_log_save_evaluate": self._step_ends,
            "_load_rng_state": self._load_rng_state,
            "_evaluate": partial(self._within, "eval", trainer._evaluate),
            "_save_checkpoint": partial(self._within, "save", trainer._save_checkpoint),
        }
        self._plain = {name: getattr(trainer, name) for name in self.wrapped}

    @cached_property
    def drive(self) -> drive.Drive:
        """The run of this process, taken once it is known that the training can be kept."""
        return drive.Drive(NAME)

    def unwrap(self) -> None:
        """No longer."""
        self._callback.kept = None
        for name in self.wrapped:
            vars(self._trainer).pop(name, None)

    # ── before the first step ──

    def _get_train_dataloader(self) -> Any:
        self._loader = self._plain["get_train_dataloader"]()
        return self._loader

    def _init_training_state(
        self, max_steps: int, updates: int, epochs: int, resume: Any, trial: Any
    ) -> tuple[int, int]:
        """Where to go on: the Trainer's own answer, unless a snapshot is restored."""
        trainer = self._trainer
        own: tuple[int, int] = self._plain["_init_training_state"](
            max_steps, updates, epochs, resume, trial
        )
        loader = place.loader_under(self._loader)
        if not place.is_loader(loader):
            why = f"it needs a DataLoader to train on, not {type(loader).__qualname__}"
            if self._callback.asked:
                raise drive.unsupported_setting(NAME, why)
            drive.left_alone(NAME, why)
            self.unwrap()
            self.read_unread()
            return own
        with self.drive.unsynced():
            self._prepared = self._plain["_prepare_for_training"](max_steps, self._loader, None)
        ahead = getattr(trainer.accelerator.state, "num_processes", 1)
        loader = place.loader_under(self._prepared[1])
        self._place = place.LoaderPlace(loader, ahead=ahead, reread=self._callback.reread)
        step = self.drive.track(**self._objects())
        if step:
            self._put_back(self._restored)
            trainer.state.init_training_references(trainer, max_steps, epochs, trial)
            own = self._restored["epoch"], self._restored["batches"]
        elif resume is not None:
            self._load_own(resume)
        self.drive.begin(trainer.state.global_step, max_steps)
        return own

    def _load_own(self, checkpoint: str) -> None:
        """As `_prepare_for_training` does; nobody reads it where a snapshot is restored."""
        trainer = self._trainer
        self.read_unread()
        if trainer.is_fsdp_enabled:
            trainer._load_from_checkpoint(checkpoint, trainer.model_wrapped)
        trainer._load_optimizer_and_scheduler(checkpoint)
        trainer._load_scaler(checkpoint)

    def _objects(self) -> dict[str, Any]:
        trainer = self._trainer
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        found = {
            "model": trainer.model_wrapped,
            "optimizer": optimizer,
            "scheduler": trainer.lr_scheduler,
            "scaler": trainer.accelerator.scaler,
        }
        return {name: thing for name, thing in found.items() if thing is not None} | {
            "trainer": self
        }

    def _prepare_for_training(self, *_: Any) -> Any:
        """Done already, because restoring comes after it."""
        return self._prepared

    def train_begins(self, control: Any) -> None:
        """What the Trainer has reset just now."""
        if self._restored:
            trainer, kept = self._trainer, self._restored
            trainer._tr_loss = kept["tr_loss"].to(trainer.args.device)
            trainer._total_loss_scalar = kept["total_loss"]
            trainer._globalstep_last_logged = kept["last_logged"]
            trainer._initial_global_step = kept["first_step"]
            trainer._initial_num_input_tokens_seen = kept["first_token"]
            control.should_training_stop = kept["stop"]

    # ── the steps ──

    def _run_epoch(self, **given: Any) -> Any:
        self._epoch = given["epoch"]
        restored = self._restored and self._epoch == self._restored["epoch"]
        if restored:
            self._go_on(given)
        return self._plain["_run_epoch"](**given)

    def _go_on(self, given: dict[str, Any]) -> None:
        """In the middle of an epoch, or at its end with what the Trainer does there."""
        assert self._place is not None
        over = self._restored["stop"] or self._restored["batches"] >= given["steps_in_epoch"]
        if over:
            given["steps_trained_in_current_epoch"] = max(given["steps_in_epoch"], 1)
            given["num_update_steps_per_epoch"] = 0
            self._place.forget()
            self._restore_random()
        self._place.after_resume = self._restore_random
        given["resume_from_checkpoint"] = _OURS

    def _restore_random(self) -> None:
        random_state.restore(self._restored["random"], self.drive.run.device)

    def _load_rng_state(self, checkpoint: Any) -> None:
        """Ours are put back before the first batch is fetched."""
        if checkpoint != _OURS:
            self._plain["_load_rng_state"](checkpoint)

    def _get_batch_samples(self, *given: Any) -> Any:
        batches, count = self._plain["get_batch_samples"](*given)
        assert self._place is not None
        self._place.used += len(batches)
        self._tokens = sum(map(_tokens, batches))
        return batches, count

    def _training_step(self, *given: Any, **named: Any) -> Any:
        loss = self._plain["training_step"](*given, **named)
        self._loss = loss if self._loss is None else self._loss + loss
        return loss

    def _step_ends(self, tr_loss: Any, grad_norm: Any, *given: Any, **named: Any) -> None:
        """Of a step, or of an epoch, when no step is under way."""
        loss, self._loss = self._loss, None
        if loss is not None:
            lr = self._trainer._get_learning_rate()
            self.drive.run.log(loss=loss, grad_norm=grad_norm, tokens=self._tokens, lr=lr)
        self._plain["_maybe_log_save_evaluate"](tr_loss, grad_norm, *given, **named)
        if loss is not None:
            self.drive.step_done()

    def _within(self, name: str, act: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with self.drive.section(name):
            return act(*given, **named)

    # ── the state ──

    def state_dict(self) -> dict[str, Any]:
        """What a trainer knows besides what is tracked by itself."""
        trainer, where = self._trainer, self._place
        assert where is not None
        callbacks = [*trainer.callback_handler.callbacks, trainer.control]
        names = [field.name for field in dataclasses.fields(trainer.state)]
        counted = {name: getattr(trainer.state, name) for name in names if name != "log_history"}
        return {
            "state": json.dumps(counted),
            "log": self._log.of(trainer.state.log_history),
            "callbacks": [json.dumps(c.state()) for c in callbacks if _has_state(c)],
            "epoch": self._epoch,
            "batches": where.used,
            "place": where.state_dict(),
            "random": random_state.capture(self.drive.run.device),
            "tr_loss": getattr(trainer, "_tr_loss", torch.tensor(0.0)).clone(),
            "total_loss": getattr(trainer, "_total_loss_scalar", 0.0),
            "last_logged": getattr(trainer, "_globalstep_last_logged", 0),
            "first_step": getattr(trainer, "_initial_global_step", 0),
            "first_token": getattr(trainer, "_initial_num_input_tokens_seen", 0),
            "flos": float(trainer.current_flos),
            "stop": trainer.control.should_training_stop,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Kept until the Trainer can take it."""
        self._restored = state

    def _put_back(self, kept: Mapping[str, Any]) -> None:
        trainer = self._trainer
        assert self._place is not None
        found = json.loads(kept["state"])
        if "log" in kept:
            found["log_history"] = LogText.entries(kept["log"])
        trainer.state = TrainerState(**found)
        trainer.current_flos = kept["flos"]
        callbacks = [*trainer.callback_handler.callbacks, trainer.control]
        for one, text in zip(filter(_has_state, callbacks), kept["callbacks"], strict=False):
            for name, value in json.loads(text)["attributes"].items():
                setattr(one, name, value)
        self._place.load_state_dict(kept["place"])


class LogText:
    """A log that only grows, as lines of JSON: of each entry once, because a snapshot may follow
    every step and a log has thousands of them."""

    def __init__(self) -> None:
        self._log: list[Any] | None = None
        self._count = 0
        self._text = b""

    def of(self, log: list[Any]) -> bytes:
        """All of it."""
        if log is not self._log or len(log) < self._count:
            self._log, self._count, self._text = log, 0, b""
        self._text += b"".join(json.dumps(one).encode() + b"\n" for one in log[self._count :])
        self._count = len(log)
        return self._text

    @staticmethod
    def entries(text: bytes) -> list[Any]:
        """What it was made of."""
        return [json.loads(line) for line in text.splitlines()]


def _has_state(callback: Any) -> bool:
    return isinstance(callback, ExportableState)


def _tokens(batch: Any) -> int:
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return ids.numel() if isinstance(ids, torch.Tensor) else 0


# ── in front of the Trainer's loop ────────────────────────────────────────────────────────────


def _require_known() -> None:
    drive.require_version("transformers", LEAST, BELOW)
    missing = [name for name in _NEEDED if not hasattr(Trainer, name)]
    if missing:
        raise drive.unsupported("transformers", transformers.__version__, f" with {missing[0]}()")


def _why_not(trainer: Any) -> str:
    """What of this training cannot be kept; empty if all can."""
    args = trainer.args
    if trainer.is_deepspeed_enabled:
        return "DeepSpeed has the optimizer (see holdfast.integrations.deepspeed)"
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if trainer.is_fsdp_enabled and getattr(plugin, "fsdp_version", 1) == 1:
        return "FSDP 1 does not say which shard of which tensor a parameter is; use fsdp_version 2"
    if args.auto_find_batch_size:
        return "auto_find_batch_size restarts the training within the process"
    if args.n_gpu > 1:
        return "it trains on several GPUs in one process (DataParallel)"
    return drive.why_not_here()


_switch = switch.Switch(NAME, _require_known, Callback)
switch_on = _switch.on


def _callback_of(trainer: Any) -> Callback | None:
    found: Callback | None = _switch.callback_in(
        trainer.callback_handler.callbacks, partial(_why_not, trainer)
    )
    return found


def _leaves_unread(trainer: Any) -> _Kept | None:
    """The training whose snapshot makes reading a model of the Trainer's superfluous, if there is
    one. Adapters may be made by being read."""
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or _is_peft_model(trainer.model):
        return None
    callback = _callback_of(trainer) if drive.snapshots_anywhere() else None
    if callback is None:
        return None
    kept = callback.kept = _Kept(trainer, callback)
    return kept if kept.drive.snapshot_waits() else None


def _begun(trainer: Any) -> _Kept | None:
    """What keeps this training."""
    ours = (one for one in trainer.callback_handler.callbacks if isinstance(one, Callback))
    begun = next((one.kept for one in ours if one.kept is not None), None)
    if begun is not None:
        return begun
    callback = _callback_of(trainer)
    if callback is not None:
        callback.kept = _Kept(trainer, callback)
    return callback.kept if callback is not None else None


def _keep(trainer: Any, loop: Callable[..., Any], given: Any, named: Any) -> Any:
    kept = _begun(trainer)
    if kept is None:
        return loop(trainer, *given, **named)
    vars(trainer).update(kept.wrapped)
    try:
        return loop(trainer, *given, **named)
    finally:
        kept.unwrap()


def whole_checkpoint(asked: str) -> str | None:
    """This checkpoint of the Trainer's, or where whoever wrote it was killed meanwhile the newest
    whole one before it; None where there is none. Its state is what the Trainer writes last."""
    number = _number(Path(asked))
    if number is None or _is_whole(Path(asked)):
        return asked
    beside = {_number(one): one for one in Path(asked).parent.iterdir() if one.is_dir()}
    older = sorted((n for n in beside if n is not None and n < number), reverse=True)
    found = next((beside[n] for n in older if _is_whole(beside[n])), None)
    logger.warning(
        "%s is incomplete, as its process died while saving it; using %s instead",
        *(asked, found or "none, as no earlier one is complete"),
    )
    return None if found is None else str(found)


def _number(folder: Path) -> int | None:
    prefix, _, digits = folder.name.rpartition("-")
    return int(digits) if prefix == PREFIX_CHECKPOINT_DIR and digits.isdecimal() else None


def _is_whole(folder: Path) -> bool:
    try:
        json.loads((folder / TRAINER_STATE_NAME).read_bytes())
    except (OSError, ValueError):
        return not folder.is_dir()  # what does not exist is reported by the Trainer
    return True


def _wrap() -> None:
    plain, plain_read = Trainer._inner_training_loop, Trainer._load_from_checkpoint
    plain_train = Trainer.train
    plain_skip = transformers.trainer.skip_first_batches

    @wraps(plain)
    def _inner_training_loop(self: Any, *given: Any, **named: Any) -> Any:
        return _keep(self, plain, given, named)

    @wraps(plain_read)
    def _load_from_checkpoint(self: Any, *given: Any, **named: Any) -> None:
        read = partial(plain_read, self, *given, **named)
        caller = sys._getframe(1)
        trains = (caller.f_globals.get("__name__"), caller.f_code.co_name) == _TRAINS
        kept = _leaves_unread(self) if trains and not drive.is_taken() else None
        if kept is None:
            read()
        else:
            kept.read_unread = read

    @wraps(plain_skip)
    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        kept = getattr(place.loader_under(dataloader), "__dict__", {}).get("_place")
        if kept is None:
            return plain_skip(dataloader, num_batches)
        kept.begin_after(num_batches)
        return dataloader

    @wraps(plain_train)
    def train(self: Any, resume_from_checkpoint: Any = None, *given: Any, **named: Any) -> Any:
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        if isinstance(resume_from_checkpoint, str):
            resume_from_checkpoint = whole_checkpoint(resume_from_checkpoint)
        return plain_train(self, resume_from_checkpoint, *given, **named)

    Trainer.train = train
    Trainer._inner_training_loop = _inner_training_loop
    Trainer._load_from_checkpoint = _load_from_checkpoint
    transformers.trainer.skip_first_batches = skip_first_batches


_wrap()
