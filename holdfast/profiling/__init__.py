"""Reads traces of PyTorch's profiler (Kineto): where a step went, and what to try first.

Pure: texts and numbers in, numbers out. Times inside are microseconds of the trace's own axis, of
which `baseTimeNanoseconds` is the zero; whatever leaves the package is in seconds.
"""
