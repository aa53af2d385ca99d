"""A training whose block is compiled: its first step takes as long as a compiler does."""

import time

import torch

from holdfast.train import join

torch.manual_seed(0)
block = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(block.parameters(), 1e-3)
run = join()
model = run.parallelize(block)
block.compile()
state = run.track(model=model, optimizer=optimizer)
for _ in state.steps(100_000):
    loss = model(torch.ones(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    run.log(loss=loss)
    time.sleep(0.05)
