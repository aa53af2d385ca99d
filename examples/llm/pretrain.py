"""Train a Llama in whatever layout the job file asks for: the script does not know which.

    python examples/llm/prepare.py --out tokens.bin
    holdfast run --nproc-per-node 2 --parallel tp=2 examples/llm/pretrain.py tokens.bin
    holdfast run --nproc-per-node 2 --parallel dp_shard=2,ep=2 examples/llm/pretrain.py tokens.bin \
        --experts 4
    holdfast run examples/llm/job.yaml

Everything down to `join()` needs no rank and is done ahead on warm workers and spares.
"""

import argparse
import math
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset

from holdfast.train import join, loader
from llama import PLACES, Llama, Shape, mean_loss


class Tokens(Dataset[Tensor]):
    """Windows of `context + 1` tokens of a file, one beginning where the last one's targets end."""

    def __init__(self, path: Path, context: int) -> None:
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.context = context

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.context
        return torch.from_numpy(self.tokens[start : start + self.context + 1].astype(np.int64))


def rate(step: int, warmup: int, steps: int) -> float:
    """Share of the highest learning rate: a linear rise, then a cosine down to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("tokens", type=Path, help="file that prepare.py has written")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8, help="sequences per rank with data")
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--warmup", type=int, default=20, help="steps to reach it")
    parser.add_argument("--clip", type=float, default=1.0, help="largest gradient norm")
    parser.add_argument("--context", type=int, default=Shape.context)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--width", type=int, default=Shape.width)
    parser.add_argument("--heads", type=int, default=Shape.heads)
    parser.add_argument("--kv-heads", type=int, default=Shape.kv_heads)
    parser.add_argument("--hidden", type=int, default=Shape.hidden)
    parser.add_argument("--experts", type=int, default=Shape.experts, help="0: none")
    parser.add_argument("--active-experts", type=int, default=Shape.active_experts)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--print-every", type=int, default=20, metavar="STEPS")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    shape = Shape(
        context=args.context,
        layers=args.layers,
        heads=args.heads,
        kv_heads=args.kv_heads,
        width=args.width,
        hidden=args.hidden,
        experts=args.experts,
        active_experts=args.active_experts,
    )
    llama = Llama(shape)
    batches = loader(Tokens(args.tokens, args.context), args.batch_size, seed=args.seed)

    run = join(in_process=True)  # all that steps change is tracked below
    model = run.parallelize(llama, places=PLACES)
    optimizer = AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = LambdaLR(optimizer, partial(rate, warmup=args.warmup, steps=args.steps))
    state = run.track(model=model, optimizer=optimizer, loader=batches, scheduler=scheduler)

    for step, batch in state.steps(total=args.steps):
        tokens = batch.to(run.device)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        loss, norm = run.train_step(
            optimizer, inputs, targets=targets, loss=mean_loss, clip=args.clip
        )
        scheduler.step()
        run.log(loss=loss, grad_norm=norm, tokens=targets.numel())
        if run.is_main and (step + 1) % args.print_every == 0:
            print(f"step {step + 1:5d}  loss {loss:.4f}  grad norm {norm:.3f}")


if __name__ == "__main__":
    main()
