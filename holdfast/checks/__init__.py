"""Checks of this machine: does it compute, remember, write and send what it is told to?

Each check has a known answer, or one that has to come out the same bit for bit, here again and on
every machine like it. Groups of checks run in processes of their own, which end in time whatever
they run into; those that need torch import it there, and whoever runs them does not.
"""
