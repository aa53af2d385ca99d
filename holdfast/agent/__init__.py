"""One node: the agent process, its forkserver, and the workers below it.

`python -m holdfast.agent` is the only way in; nothing here is imported by other packages. The agent
speaks `messages` with the controller and never imports it, so that it is the same on every engine.
"""
