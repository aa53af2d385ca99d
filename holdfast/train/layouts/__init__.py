"""What `run.parallelize()` does to a model, and a step of the optimizer, in any layout.

`build` puts the parts together; each other module knows one of them. Everything is done in place,
by hooks of PyTorch or around `forward`, so that parameters keep their names, and a state that one
layout has left can be read by every other.
"""
