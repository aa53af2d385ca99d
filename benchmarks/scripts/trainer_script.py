"""A Llama of 16 million parameters trained by Hugging Face's Trainer, which saves every 20 steps
and resumes from what it has saved: the script of somebody who restarts with torchrun."""

import os
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from network import StepLog, mark

EVERY = 20
CONTEXT = 64
mark("imported")


class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """As many as anybody wants."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(0, 1024, (CONTEXT,), generator=generator)
        return {"input_ids": ids, "labels": ids}


class LoggedSteps(TrainerCallback):  # type: ignore[misc]
    """The measuring device."""

    def __init__(self) -> None:
        self._log = StepLog()

    def on_train_begin(self, *_: Any, **_more: Any) -> None:
        mark("training")

    def on_step_end(self, _args: Any, state: Any, *_: Any, **_more: Any) -> None:
        self._log.done(state.global_step)


def main() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=8,
    )
    out = Path(os.environ["BENCHMARK_CHECKPOINT"])
    args = TrainingArguments(
        output_dir=str(out),
        max_steps=int(os.environ["BENCHMARK_TOTAL"]),
        per_device_train_batch_size=1,
        save_steps=EVERY,
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    model = LlamaForCausalLM(config)
    trainer = Trainer(model, args, train_dataset=Tokens(), callbacks=[LoggedSteps()])
    mark("built")
    found = get_last_checkpoint(str(out)) if out.is_dir() else None
    trainer.train(resume_from_checkpoint=found)


if __name__ == "__main__":
    main()
