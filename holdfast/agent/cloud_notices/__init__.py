"""What the cloud announces of this machine: a spot reclaim, maintenance, a reboot.

Every cloud tells its machines beforehand, through a metadata service that only the machine itself
reaches. It is asked every few seconds in a thread of its own, as a provider of the node's health,
so that what is announced becomes a condition of the node (`Severity.LEAVES`), as a taint of its
machine does on Kubernetes, and leads into the same hand-over.
"""
