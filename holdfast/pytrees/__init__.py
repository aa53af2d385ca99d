"""The library for scripts without torch: JAX, NumPy, XGBoost, MPI programs.

    from holdfast.pytrees import join

    run = join()                                   # returns when this worker has a rank
    state = run.track(params=params, opt_state=opt_state)      # restored, if there is something
    for step in state.steps(total=1000):
        state.params, state.opt_state, loss = update(state.params, state.opt_state, batch(step))
        run.log(loss=loss)

What is tracked are trees of arrays, numbers, strings and bytes. They go to the same memory and the
same tiers as the state of `holdfast.train`. The same script runs by itself, without an agent.
"""

from holdfast.datasets.place import dataset
from holdfast.pytrees.session import TreeRun, TreeState, join

__all__ = ["TreeRun", "TreeState", "dataset", "join"]
