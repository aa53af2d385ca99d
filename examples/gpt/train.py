"""Train a byte-level GPT on the source of Python's standard library.

Everything down to `join()` needs no rank and is done ahead on warm workers and spares. The rest is
an ordinary training loop. The same file runs alone (`python examples/gpt/train.py`), under
torchrun, and under Holdfast, where it survives faults without a changed bit.
"""

import argparse
import math
from functools import partial
from pathlib import Path

import torch
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from data import ByteDataset, standard_library_text
from holdfast.train import join, loader
from model import GPT, Shape


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--batch-size", type=int, default=8, help="windows per rank and step")
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate")
    parser.add_argument("--warmup", type=int, default=20, help="steps to reach it")
    parser.add_argument("--clip", type=float, default=1.0, help="largest gradient norm")
    parser.add_argument("--context", type=int, default=Shape.context)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--heads", type=int, default=Shape.heads)
    parser.add_argument("--width", type=int, default=Shape.width)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--print-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--save", type=Path, metavar="PATH", help="where to put the parameters")
    return parser.parse_args()


def rate(step: int, warmup: int, steps: int) -> float:
    """Share of the highest learning rate: a linear rise, then a cosine down to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done)))


def save(model: torch.nn.Module, path: Path) -> None:
    """Write the parameters whole or not at all."""
    unfinished = path.with_name(path.name + ".unfinished")
    torch.save(model.state_dict(), unfinished)
    unfinished.replace(path)


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    gpt = GPT(Shape(args.context, args.layers, args.heads, args.width))
    text = ByteDataset(standard_library_text(), args.context)
    batches = loader(text, args.batch_size, seed=args.seed)

    run = join(in_process=True)  # all that steps change is tracked below
    model = run.parallelize(gpt)
    optimizer = AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = LambdaLR(optimizer, partial(rate, warmup=args.warmup, steps=args.steps))
    state = run.track(model=model, optimizer=optimizer, loader=batches, scheduler=scheduler)
    millions = sum(p.numel() for p in gpt.parameters()) / 1e6
    print(f"rank {run.rank} of {run.world_size} on {run.device}: {millions:.1f} M parameters")

    for step, batch in state.steps(total=args.steps):
        windows = batch.to(run.device)
        loss = model(windows[:, :-1], windows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        grad_norm = clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        scheduler.step()
        run.log(loss=loss, grad_norm=grad_norm, tokens=windows[:, 1:].numel())
        if run.is_main and (step + 1) % args.print_every == 0:
            print(f"step {step + 1:5d}  loss {loss.item():.4f}  grad norm {grad_norm.item():.3f}")

    if args.save and run.is_main:
        save(gpt, args.save)


if __name__ == "__main__":
    main()
