"""The one host of a controller: everything effectful around it that is not peculiar to an engine.

`Shell` leads from facts to orders and owns each node's life; the local driver, the driver for
Kubernetes and the simulation share it. `Host` runs it in a process of its own, over a `Server`.
"""
