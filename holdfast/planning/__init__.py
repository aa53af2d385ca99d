"""What a training will need before it is started: layout, memory, time, checkpoints, spares, cost.

Pure functions from a model, a cluster and a batch to numbers, with the source of every formula;
docs/concepts/planning.md has them on one page, with how far published results are from them.
"""
