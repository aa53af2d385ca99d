"""A small Llama on bytes of text, trained by Hugging Face's Trainer: a script as it usually is.

    holdfast run examples/transformers/job.yaml

Nothing in it is Holdfast's. Under Holdfast the trainer's state is kept in memory all the same
(`integrate: auto`); written out, that is `callbacks=[Callback()]` from
`holdfast.integrations.transformers`.
"""

import argparse
import sysconfig
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

CONTEXT = 64


class TextData(torch.utils.data.Dataset[dict[str, Any]]):
    """Pieces of a text, as bytes."""

    def __init__(self, text: bytes) -> None:
        self._bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return len(self._bytes) // CONTEXT

    def __getitem__(self, number: int) -> dict[str, Any]:
        piece = self._bytes[number * CONTEXT : (number + 1) * CONTEXT]
        return {"input_ids": piece, "labels": piece}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", default="out")
    parser.add_argument("--text", type=Path, default=Path(sysconfig.get_path("stdlib"), "os.py"))
    parser.add_argument("--model", help="folder of a Llama to fine-tune; default: a new, small one")
    parser.add_argument("--save", help="folder for the model at the end")
    options = parser.parse_args()
    data = TextData(options.text.read_bytes())
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    args = TrainingArguments(
        output_dir=options.out,
        max_steps=options.steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=10,
        save_steps=50,
        save_total_limit=2,
        eval_strategy="steps",
        eval_steps=50,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        ddp_find_unused_parameters=False,
    )
    held_out = torch.utils.data.Subset(data, range(16))
    if options.model is not None:
        model = LlamaForCausalLM.from_pretrained(options.model)
    else:
        model = LlamaForCausalLM(config)
    trainer = Trainer(model, args, train_dataset=data, eval_dataset=held_out)
    trainer.train()
    if options.save is not None:
        trainer.save_model(options.save)  # by rank 0 alone


if __name__ == "__main__":
    main()
