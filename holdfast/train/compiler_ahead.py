"""What `torch.compile` finds out about a machine, found out when this module is imported.

The first block that a process compiles imports Inductor, builds a small library for each set of
vector instructions that the processor may have, loads it in a process of its own to see whether it
works, and hashes the source of PyTorch: two seconds, even where all code that it needs is in the
cache. The forkserver of a job with `parallel.compile` does that once, for all workers that it
forks; of scripts that call `torch.compile` a worker does while it waits for its rank. Where there
is a GPU nothing is compiled for the processor.
"""

import os

from torch._inductor import codecache, compile_fx, cpu_vec_isa

from holdfast import devices, rank

__all__ = ["compile_fx"]  # it imports all that a first compilation does

if devices.count("auto", os.environ) == 0:
    cpu_vec_isa.pick_vec_isa()
    if rank.CONTROL not in os.environ:
        codecache.CacheBase.get_system()  # asks for a GPU, which a worker without a rank waits for
codecache.torch_key()
