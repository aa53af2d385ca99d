"""What a training script imports: `join`, and a resumable loader in `holdfast.train.data`.

    from holdfast.train import join

    model = GPT(config)                  # work that needs no rank: done ahead on warm workers
    run = join()                         # returns when this worker has a rank
    model = run.parallelize(model)
    state = run.track(model=model, optimizer=optimizer, loader=loader)
    for step, batch in state.steps(total=1000):
        ...
        run.log(loss=loss, tokens=batch.numel())

The same script runs under `holdfast run`, under torchrun, and as plain `python train.py`.
"""

from holdfast.datasets.place import dataset
from holdfast.train.data import Loader, loader
from holdfast.train.flops import count_flops
from holdfast.train.session import Run, join
from holdfast.train.state import State
from holdfast.train.update_ratio import update_ratio

__all__ = ["Loader", "Run", "State", "count_flops", "dataset", "join", "loader", "update_ratio"]
