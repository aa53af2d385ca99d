"""Lightning's Trainer with dropout, accumulated gradients, validation within an epoch that draws
random numbers, and means over an epoch."""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import TorchCheckpointIO
from torch.utils.data import DataLoader, TensorDataset

OUT = Path(sys.argv[1])
RANK = os.environ.get("RANK", "0")
CPU = not torch.cuda.is_available()


def note(name: str, **line: Any) -> None:
    with (OUT / f"{name}-{RANK}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


class Small(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
        )

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        loss: torch.Tensor = (self.net(x) - y).square().mean()
        self.log("loss", loss, on_epoch=True, on_step=True)
        step = self.trainer.fit_loop.total_batch_idx
        note("rank", step=step, loss=float(loss.item()).hex(), data=x.sum().item())
        killed = OUT / f"killed-{step}"
        due = str(step) in os.environ.get("KILL", "").split(",")
        if os.environ.get("KILLED", "1") == RANK and due and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), 9)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        x, y = batch
        self.log(
            "val",
            (self.net(x) - y).square().mean() + torch.rand(1, device=x.device),
            sync_dist=True,
        )

    def on_train_epoch_end(self) -> None:
        metrics = self.trainer.callback_metrics
        mean = metrics.get("loss_epoch", torch.zeros(1)).item()
        note("epoch", step=self.current_epoch, mean=mean, val=metrics["val"].item())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, 30)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Noted(TorchCheckpointIO):  # type: ignore[misc]
    """Says what is read."""

    def load_checkpoint(self, *given: Any, **named: Any) -> Any:
        print("reads a checkpoint", flush=True)
        return super().load_checkpoint(*given, **named)


def main() -> None:
    """`RESUME`: it saves, and resumes from what it has saved."""
    OUT.mkdir(exist_ok=True)
    resumes = "RESUME" in os.environ
    callbacks: list[Any] = [ModelCheckpoint(OUT, every_n_train_steps=2)] if resumes else []
    if "EXPLICIT" in os.environ:
        from holdfast.integrations.lightning import FitCallback

        callbacks.append(FitCallback())
    lightning.seed_everything(0)
    data = TensorDataset(torch.randn(52, 8), torch.randn(52, 1))
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu" if CPU else "gpu", devices=2 if CPU else 1,
        precision="16-mixed" if "HALF" in os.environ else None,
        strategy="ddp", accumulate_grad_batches=2, default_root_dir=str(OUT),
        enable_progress_bar=False, logger=False, callbacks=callbacks,
        val_check_interval=3, enable_model_summary=False, plugins=[Noted()],
        max_steps=int(os.environ.get("MAX_STEPS", "-1")),
    )  # fmt: skip
    model = Small()
    loader = DataLoader(data, batch_size=4, shuffle=True)
    found = max(OUT.glob("*.ckpt"), default=None, key=os.path.getmtime) if resumes else None
    trainer.fit(model, loader, DataLoader(data, batch_size=8), ckpt_path=found)
    weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    (OUT / f"final-{RANK}").write_text(hashlib.sha256(weights).hexdigest())


main()
