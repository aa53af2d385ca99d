"""The training of train_ddp.py with `holdfast.train`.

    python examples/ddp/train_ddp_library.py
    holdfast run examples/ddp/library.yaml
    holdfast chaos ddp-library --fault SIGKILL      # meanwhile: it goes on at the step under way

The state is kept in memory, after a fault training is bit for bit the same, and nothing here
saves or loads. Under torchrun and as one process the script runs, too; nothing is kept there.
"""

import argparse

import torch
from torch.nn.functional import cross_entropy

from holdfast.train import join, loader
from spirals import network, spirals


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1280)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--print-every", type=int, default=64, metavar="STEPS")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = network()
    batches = loader(spirals(args.samples), args.batch_size)  # shuffled, each rank its share

    # What is above needs no rank and is done ahead for a restart; all that steps change is tracked.
    run = join(in_process=True)
    model = run.parallelize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    state = run.track(model=model, optimizer=optimizer, loader=batches)

    for step, batch in state.steps(total=args.steps):
        points, arms = (part.to(run.device) for part in batch)
        answers = model(points)
        loss = cross_entropy(answers, arms)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy = (answers.argmax(1) == arms).float().mean()
        run.log(loss=loss, accuracy=accuracy)
        if run.is_main and (step + 1) % args.print_every == 0:
            print(f"step {step + 1} loss {loss.item():.4f} accuracy {accuracy.item():.4f}")


if __name__ == "__main__":
    main()
