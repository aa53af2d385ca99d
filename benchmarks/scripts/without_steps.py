"""Ranks of which no steps are seen: they compute, meet, and do to themselves what they are told.

`--plan FILE` as of faulty.py: each order comes after some seconds of work, its time is noted in
`FILE.NUMBER` (with rank -1 in `FILE.NUMBER.RANK`), and what is noted is not done again, so the next
attempt goes on to the next one. Whom it does not concern waits in a barrier. What is meant lasts
for `--meant-s`, and then they go on.
"""

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--plan", type=Path, required=True)
parser.add_argument("--meant-s", type=float, required=True)
args = parser.parse_args()
WORK_S = 3.0


def compute(seconds: float) -> None:
    """Without a word."""
    end, numbers = time.monotonic() + seconds, np.ones((200, 200))
    while time.monotonic() < end:
        product = numbers @ numbers
        numbers = product / product.max()


def lock() -> None:
    """Wait for oneself."""
    one = threading.Lock()
    one.acquire()
    one.acquire()


def read() -> None:
    """What nobody will ever write."""
    os.read(os.pipe()[0], 1)


DOES: dict[str, Callable[[], object]] = {
    "deadlock": lock,
    "rank deadlocked": lock,
    "rank reads": read,
    "rank stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "all sleep": lambda: time.sleep(args.meant_s),
    "rank computes": lambda: compute(args.meant_s),
    "rank sleeps": lambda: time.sleep(args.meant_s),
}

dist.init_process_group("gloo")
mine = dist.get_rank()
orders = list(enumerate(json.loads(args.plan.read_text())))
done = [one.name.split(".")[2] for one in args.plan.parent.glob(f"{args.plan.name}.*")]
dist.barrier()  # everybody has read what was done before this attempt
for number, order in orders:
    if str(number) in done:
        continue
    compute(WORK_S)
    dist.barrier()
    if order["rank"] in (mine, -1):
        suffix = f".{mine}" if order["rank"] == -1 else ""
        Path(f"{args.plan}.{number}{suffix}").write_text(f"{time.time():.6f}")
        DOES[order["kind"].removeprefix("no steps: ")]()
    dist.barrier()
