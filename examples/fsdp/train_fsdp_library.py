"""The training of train_fsdp.py with `holdfast.train`.

    holdfast run examples/fsdp/library.yaml
    holdfast chaos fsdp-library --fault SIGKILL     # meanwhile: it goes on at the step under way

That the model is sharded stands in the job file (`parallel: {dp_shard: -1}`), not in the script.
"""

import argparse

import torch

from bytes_model import NextByte, windows
from holdfast.train import join, loader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=8, help="windows per rank")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--print-every", type=int, default=10, metavar="STEPS")
    args = parser.parse_args()

    torch.manual_seed(0)
    network = NextByte()
    batches = loader(windows(), args.batch_size)  # shuffled, each rank its share

    # What is above needs no rank and is done ahead for a restart; all that steps change is tracked.
    run = join(in_process=True)
    model = run.parallelize(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    state = run.track(model=model, optimizer=optimizer, loader=batches)

    for step, (batch,) in state.steps(total=args.steps):
        text = batch.to(run.device)
        loss = model(text[:, :-1], text[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        grad_norm = run.clip_grad_norm_(model, 1.0)
        optimizer.step()
        run.log(loss=loss, grad_norm=grad_norm, tokens=text[:, 1:].numel())
        if run.is_main and (step + 1) % args.print_every == 0:
            print(f"step {step + 1} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
