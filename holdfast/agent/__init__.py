"""One node: the agent process, its forkserver, and the workers below it.

`python -m holdfast.agent` is the way in on a laptop, `holdfast agent` in a pod. The agent
speaks `messages` with the controller and never imports it, so that it is the same on every engine.
"""
