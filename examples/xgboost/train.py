"""Train boosted trees with XGBoost on several workers, each with its share of the rows.

    holdfast run examples/xgboost/job.yaml
    python examples/xgboost/train.py --rounds 20      # the same script by itself

Holdfast starts a tracker for each attempt, whose address every worker finds in its environment.
The booster is kept after each round, so that a worker which dies costs the round under way.
"""

import argparse
import os

import numpy as np
import xgboost
from xgboost import collective

from holdfast.pytrees import join


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--rows", type=int, default=20_000, help="of all workers together")
    return parser.parse_args()


def share(rows: int, rank: int, workers: int) -> xgboost.DMatrix:
    """Every so many rows of a table that all workers could make; another script reads files."""
    random = np.random.default_rng(0)
    table = random.normal(size=(rows, 8))
    target = table[:, 0] * table[:, 1] + np.sin(3.0 * table[:, 2])
    return xgboost.DMatrix(table[rank::workers], target[rank::workers])


def tracker() -> dict[str, object]:
    """Where the workers meet; nothing for a single one."""
    if "DMLC_TRACKER_URI" not in os.environ:
        return {}
    return {
        "dmlc_tracker_uri": os.environ["DMLC_TRACKER_URI"],
        "dmlc_tracker_port": int(os.environ["DMLC_TRACKER_PORT"]),
        "dmlc_task_id": os.environ["DMLC_TASK_ID"],
    }


def main() -> None:
    args = arguments()
    run = join()  # the lines above run ahead of time on warm workers
    collective.init(**tracker())
    data = share(args.rows, run.rank, run.world_size)
    state = run.track(booster=b"")
    print(f"{run.world_size} workers, from round {state.completed}", flush=True)
    for number in state.steps(args.rounds):
        before = xgboost.Booster(model_file=bytearray(state.booster)) if state.booster else None
        told: dict[str, dict[str, list[float]]] = {}
        booster = xgboost.train(
            {"nthread": 1, "max_depth": 4, "eta": 0.3},
            data,
            num_boost_round=1,
            xgb_model=before,
            evals=[(data, "train")],
            evals_result=told,
            verbose_eval=False,
        )
        state.booster = bytes(booster.save_raw())
        error = told["train"]["rmse"][-1]
        run.log(loss=error)
        if run.rank == 0 and (number + 1) % 10 == 0:
            print(f"round {number + 1:4d}  rmse {error:.4f}", flush=True)
    collective.finalize()


if __name__ == "__main__":
    main()
