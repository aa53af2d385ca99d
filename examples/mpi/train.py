"""Fit a line by gradient descent with mpi4py: each rank has its share of the points.

    holdfast run examples/mpi/job.yaml
    mpirun -np 2 python examples/mpi/train.py         # the same script, started by hand

Holdfast starts `mpirun`, without ssh, and holds the place of each rank: environment, output and
memory for snapshots are that rank's own, whatever machine MPI has put it on.
"""

import argparse

import numpy as np
from mpi4py import MPI

from holdfast.pytrees import join


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--points", type=int, default=4096, help="of each rank")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    world = MPI.COMM_WORLD
    run = join()
    random = np.random.default_rng(world.rank)
    x = random.uniform(-1.0, 1.0, args.points)
    y = 3.0 * x - 1.0 + 0.1 * random.normal(size=args.points)

    state = run.track(line=np.zeros(2), seen=0)  # `seen` is this rank's own
    print(f"rank {world.rank} of {world.size}, from step {state.completed}", flush=True)
    for step in state.steps(args.steps):
        slope, shift = state.line
        wrong = slope * x + shift - y
        mine = np.array([np.mean(wrong * x), np.mean(wrong), np.mean(wrong**2)])
        mean = np.empty_like(mine)
        world.Allreduce(mine, mean, op=MPI.SUM)
        mean /= world.size
        state.line = state.line - 0.05 * mean[:2]
        state.seen += args.points
        run.log(loss=mean[2])
        if world.rank == 0 and (step + 1) % 100 == 0:
            print(f"step {step + 1:5d}  loss {mean[2]:.5f}", flush=True)


if __name__ == "__main__":
    main()
