"""The restart benchmark's script with torchft: one replica of one rank; the training is plain.py's.

Written as torchft's own examples are: its DDP, its optimizer wrapper, state from a peer by HTTP.
With `--hooks` it is the other of its two kinds of DDP, which averages each gradient by a hook. Only
steps that were committed are logged, with the number of the quorum for that of the attempt.
"""

import os
import sys
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore
from torch.nn.functional import cross_entropy
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.ddp import PureDistributedDataParallel

from network import StepLog, batch_of, network

HOST = "127.0.0.1"
WAIT = timedelta(seconds=30)


def main() -> None:
    number = int(os.environ["RANK"])
    module = network()
    plain = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)

    def load(state: Any) -> None:
        module.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    def save() -> dict[str, Any]:
        return {"model": module.state_dict(), "optimizer": plain.state_dict()}

    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=WAIT),
        load_state_dict=load,
        state_dict=save,
        min_replica_size=1,
        timeout=WAIT,
        rank=0,
        world_size=1,
        store_addr=HOST,
        store_port=store.port,
        replica_id=f"replica_{number}",
        hostname=HOST,
    )
    kind = PureDistributedDataParallel if "--hooks" in sys.argv else DistributedDataParallel
    model, optimizer = kind(manager, module), Optimizer(manager, plain)
    log = StepLog()
    while (step := manager.current_step()) < int(os.environ["BENCHMARK_TOTAL"]):
        inputs, targets = batch_of(step, number)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
        if manager.current_step() > step:
            os.environ["TORCHELASTIC_RESTART_COUNT"] = str(manager._quorum_id)
            log.done(manager.current_step())


if __name__ == "__main__":
    main()
