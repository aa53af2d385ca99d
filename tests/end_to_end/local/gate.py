"""Preloaded by nodes of a test: those after the first three are ready once a file exists.

The file is `go` in the folder of the job, so other jobs are let through whatever they wait for.
"""

import os
import time
from pathlib import Path

FIRST = ("node-0", "node-1", "node-2")
name = os.environ["HOLDFAST_NODE"].rpartition("-")[0]
go = Path(os.environ["HOLDFAST_JOB_DIR"], "go")
while name not in FIRST and not go.exists():
    time.sleep(0.02)
