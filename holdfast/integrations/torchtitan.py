"""torchtitan's Trainer: one line between making it and `trainer.train()`.

    from holdfast.integrations.torchtitan import keep

    trainer = config.build()  # in 0.2: Trainer(config)
    keep(trainer)
    trainer.train()

Model parts, optimizers, schedulers, the data loader's position and the trainer's own counters are
the states that torchtitan gives its checkpointer; they are kept in memory after each step. Its
checkpointer goes on as configured; what it loads is replaced by a snapshot where there is one.

A step of ours ends when the trainer asks whether to go on: after it has saved and validated, so
that whoever dies within does these again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.integrations import drive

NAME = "torchtitan.Trainer"
_NEEDED = (
    *("checkpointer", "model_parts", "optimizers", "lr_schedulers", "dataloader", "step"),
    *("metrics_processor", "should_continue_training", "train"),
)


class TitanTraining:
    """What `keep` has wrapped of a trainer."""

    def __init__(self, trainer: Any) -> None:
        missing = [name for name in _NEEDED if not hasattr(trainer, name)]
        config = getattr(trainer, "config", None) or getattr(trainer, "job_config", None)
        if missing or config is None:
            raise drive.unsupported_setting(NAME, f"it has no {(*missing, 'config')[0]}")
        self._trainer = trainer
        self._total: int = config.training.steps
        self._done = 0  # the newest step that was counted
        self._tokens = 0
        self.drive = drive.Drive(NAME)
        wrapped: list[tuple[Any, str, Callable[..., Any]]] = [
            (trainer, "train", self._train),
            (trainer, "should_continue_training", self._goes_on),
            (trainer.checkpointer, "load", self._load),
            (trainer.checkpointer, "save", partial(self._within, "save")),
            (trainer.metrics_processor, "log", self._log),
        ]
        if hasattr(trainer, "validator"):
            wrapped.append((trainer.validator, "validate", partial(self._within, "eval")))
        for owner, name, ours in wrapped:
            setattr(owner, name, partial(ours, getattr(owner, name)))

    def _objects(self) -> dict[str, Any]:
        trainer = self._trainer
        return {
            **_numbered("model", trainer.model_parts),
            **_numbered("optimizer", getattr(trainer.optimizers, "optimizers", trainer.optimizers)),
            **_numbered("scheduler", getattr(trainer.lr_schedulers, "schedulers", ())),
            "data": trainer.dataloader,
            "trainer": trainer,
        }

    def _load(self, plain: Callable[..., Any], *given: Any, **named: Any) -> Any:
        answer = plain(*given, **named)
        self.drive.track(**self._objects())
        self._done = self._trainer.step
        self._tokens = self._seen()
        self.drive.begin(self._done, self._total)
        return answer

    def _goes_on(self, plain: Callable[[], bool]) -> bool:
        if self._trainer.step > self._done:
            self._done, before, self._tokens = self._trainer.step, self._tokens, self._seen()
            self.drive.run.log(tokens=self._tokens - before)
            self.drive.step_done()
        return plain()

    def _train(self, plain: Callable[[], Any]) -> Any:
        answer = plain()
        self.drive.end()  # it may have run out of data before its last step
        return answer

    def _log(self, plain: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """`(step, mean loss, largest loss, gradient norm, ...)`, of those steps that are logged."""
        if len(given) >= 4:
            self.drive.run.log(loss=given[1], grad_norm=given[3])
        return plain(*given, **named)

    def _within(self, name: str, plain: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with self.drive.section(name):
            return plain(*given, **named)

    def _seen(self) -> int:
        return int(getattr(self._trainer, "ntokens_seen", 0))


def _numbered(name: str, things: Any) -> dict[str, Any]:
    return {f"{name}_{number}": thing for number, thing in enumerate(things)}


def keep(trainer: Any) -> TitanTraining:
    """Keep this training. Raises `Error` (trainer-unsupported, run-unavailable)."""
    return TitanTraining(trainer)
