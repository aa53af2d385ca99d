"""Sends what a job has logged to experiment trackers, in a process of its own beside the agent.

The agent of rank 0 writes `metrics.jsonl`, which is the spool: training writes to no service, and
waits for none. This process follows the file and sends what is new; `tracking.json` beside it says
how far each tracker has come. So a service that is away for an hour costs nothing, and the next
process goes on where this one stopped, with the same run.

Steps that are done again after a fault are told once: TensorBoard's files are told to forget what
was written of them, and the other trackers are not told of a step that they know.
"""
