"""Readings of this machine: GPUs, memory, processors, disks, processes, network, kernel log.

A provider reads one kind of counter and says what it read; what that means is decided by
`holdfast.detection.health`. Every path is below a root that can be another than `/`, so that
recorded trees can be read, and the machine's own where a container has it mounted elsewhere.
"""
