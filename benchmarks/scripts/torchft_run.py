"""Two replicas of torchft_replica.py, a lighthouse, and what starts a replica again that ends.

`--heartbeat-timeout-ms` and `--join-timeout-ms` are those of the lighthouse; the defaults here are
those of torchft and of its README.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from torchft.coordination import LighthouseServer

REPLICAS, POLL_S = 2, 0.05


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--heartbeat-timeout-ms", type=int, default=5000)
    parser.add_argument("--join-timeout-ms", type=int, default=10_000)
    parser.add_argument("--hooks", action="store_true", help="as torchft_replica.py")
    args = parser.parse_args()
    lighthouse = LighthouseServer(
        bind="[::]:0",
        min_replicas=1,
        join_timeout_ms=args.join_timeout_ms,
        quorum_tick_ms=100,
        heartbeat_timeout_ms=args.heartbeat_timeout_ms,
    )
    _, _, port = lighthouse.address().rpartition(":")
    how = (f"http://127.0.0.1:{port}", args.hooks)
    replicas = [start(number, *how) for number in range(REPLICAS)]
    while True:
        for number, replica in enumerate(replicas):
            if replica.poll() is not None:
                replicas[number] = start(number, *how)
        time.sleep(POLL_S)


def start(number: int, lighthouse: str, hooks: bool) -> "subprocess.Popen[bytes]":
    """A replica, in a process of its own."""
    environment = os.environ | {"RANK": str(number), "TORCHFT_LIGHTHOUSE": lighthouse}
    script = Path(__file__).with_name("torchft_replica.py")
    options = ["--hooks"] if hooks else []
    return subprocess.Popen([sys.executable, str(script), *options], env=environment)


if __name__ == "__main__":
    main()
