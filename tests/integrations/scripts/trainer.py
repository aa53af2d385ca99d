"""Hugging Face's Trainer with all that makes resuming hard: a collator that draws, gradients that
are accumulated, an epoch that does not divide evenly, evaluation, saving, dropout."""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

OUT = Path(sys.argv[1])
RANK = os.environ.get("RANK", "0")
CPU = not torch.cuda.is_available()


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 50

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(number))


def collate(items: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    labels = torch.stack(items)
    hidden = torch.rand(labels.shape) < 0.1
    return {"input_ids": labels.masked_fill(hidden, 1), "labels": labels}


class Notes(TrainerCallback):  # type: ignore[misc]
    """Writes down what is logged, and kills its worker where it is told to."""

    def on_log(self, _args: Any, state: Any, *_: Any, logs: Any = None, **_more: Any) -> None:
        kept = {k: v for k, v in logs.items() if "runtime" not in k and "second" not in k}
        with (OUT / f"rank-{RANK}.jsonl").open("a") as file:
            file.write(json.dumps({"step": state.global_step, **kept}) + "\n")

    def on_step_end(self, _args: Any, state: Any, *_: Any, **_more: Any) -> None:
        killed = OUT / f"killed-{state.global_step}"
        due = str(state.global_step) in os.environ.get("KILL", "").split(",")
        if os.environ.get("KILLED", "1") == RANK and due and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), 9)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    callbacks: list[Any] = [Notes()]
    if "EXPLICIT" in os.environ:
        from holdfast.integrations.transformers import Callback

        callbacks.append(Callback())
    torch.use_deterministic_algorithms(mode=not CPU)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, attention_dropout=0.1,
    )  # fmt: skip
    args = TrainingArguments(
        output_dir=str(OUT), num_train_epochs=4, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, logging_steps=1, save_steps=10, eval_strategy="steps",
        eval_steps=8, report_to=[], use_cpu=CPU,
        fp16="HALF" in os.environ, disable_tqdm=True, save_total_limit=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    trainer = Trainer(
        model, args, train_dataset=Numbers(), eval_dataset=Numbers(), data_collator=collate,
        callbacks=callbacks,
    )  # fmt: skip
    trainer.train()
    weights = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    (OUT / f"final-{RANK}").write_text(hashlib.sha256(weights).hexdigest())


main()
