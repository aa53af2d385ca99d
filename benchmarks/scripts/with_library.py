"""The restart benchmark's script with `holdfast.train`; the training is that of plain.py."""

import os

import torch
from torch.nn.functional import cross_entropy

from holdfast.train import join
from network import StepLog, batch_of, network


def main() -> None:
    network_ = network()
    run = join()
    model = run.parallelize(network_)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    state = run.track(model=model, optimizer=optimizer)
    log = StepLog()
    for step, _ in state.steps(total=int(os.environ["BENCHMARK_TOTAL"])):
        inputs, targets = batch_of(step, run.rank)
        loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        run.log(loss=loss)
        log.done(step + 1)


if __name__ == "__main__":
    main()
