"""torchtitan's Trainer: one line between making it and `trainer.train()`.

    from holdfast.integrations.torchtitan import keep

    trainer = config.build()
    keep(trainer)
    trainer.train()

Model parts, optimizers, schedulers, the data loader's position and the trainer's own counters are
the states that torchtitan gives its checkpointer; they are kept in memory after each step. Its
checkpointer goes on as configured; what it loads is replaced by a snapshot where there is one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.integrations import drive

NAME = "torchtitan.Trainer"


class TitanTraining:
    """What `keep` has wrapped of a trainer."""

    def __init__(self, trainer: Any) -> None:
        missing = [
            n for n in ("checkpointer", "model_parts", "optimizers") if not hasattr(trainer, n)
        ]
        if missing:
            raise drive.unsupported_setting(NAME, f"it has no {missing[0]}")
        self._trainer = trainer
        self.drive = drive.Drive(NAME)
        checkpointer = trainer.checkpointer
        checkpointer.load = partial(self._load, checkpointer.load)
        checkpointer.save = partial(self._save, checkpointer.save)

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
        self.drive.begin(self._trainer.step, self._trainer.config.training.steps)
        return answer

    def _save(
        self, plain: Callable[..., Any], step: int, last_step: bool = False, **named: Any
    ) -> Any:
        with self.drive.section("save"):
            answer = plain(step, last_step=last_step, **named)
        self.drive.step_done()
        return answer


def _numbered(name: str, things: Any) -> dict[str, Any]:
    return {f"{name}_{number}": thing for number, thing in enumerate(things)}


def keep(trainer: Any) -> TitanTraining:
    """Keep this training. Raises `Error` (trainer-unsupported, run-unavailable)."""
    return TitanTraining(trainer)
