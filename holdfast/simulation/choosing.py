"""What was chosen is what the table says, and what is ordered is what was chosen.

Judged from lines of the journal alone, so a controller that took another step than the one it
gives an account of is seen, whatever it believes.
"""

from holdfast.actions import EndJob, Entry, Fence, Outcome
from holdfast.events import AttemptStopped, ControllerResumed, Diagnosed
from holdfast.status import Choice

REPLACE, GIVE_UP = "replace", "give-up"
NO_MACHINE = ("worker-exception", "worker-exit", "exited-early", "exited-silently", "environment")
"""Causes in these worlds that lie in the script, or in what it depends on."""


def judged(entry: Entry) -> str:
    """What is wrong with the choices of a line; empty if nothing is."""
    for choice in entry.choices:
        if how := _wrong(choice):
            return f"{choice.step} was chosen for {choice.about} ({choice.cause}): {how}"
    return _unaccounted(entry)


def _wrong(choice: Choice) -> str:
    taken = [one for one in choice.alternatives if one.step == choice.step]
    if len(taken) != 1 or not taken[0].sufficient:
        return "it is not among the sufficient steps"
    cheaper = [one for one in choice.alternatives if one.sufficient]
    best = min(cheaper, key=lambda one: one.cost_s)
    if best.cost_s < taken[0].cost_s:
        return f"it costs {taken[0].cost_s:g} s, {best.step} {best.cost_s:g} s"
    of_node = not choice.about.startswith("attempt ")  # else a rank without a node gets one
    blamed = choice.step == REPLACE and of_node and choice.cause in NO_MACHINE
    return "no machine is to blame for that" if blamed else ""


def _unaccounted(entry: Entry) -> str:
    """Orders that nobody has chosen, and a choice without its order."""
    steps = {choice.step for choice in entry.choices}
    ends = [one.outcome for one in entry.actions if isinstance(one, EndJob)]
    gives_up = any(outcome in (Outcome.FAILED, Outcome.GAVE_UP) for outcome in ends)
    if isinstance(entry.event, ControllerResumed):
        return ""  # it repeats what was ordered before
    if gives_up != (GIVE_UP in steps):
        return "the job ends and nobody chose that" if gives_up else "it was to end and goes on"
    if not isinstance(entry.event, Diagnosed | AttemptStopped) or REPLACE in steps:
        return ""
    left = [one.node for one in entry.actions if isinstance(one, Fence) and one.blamed]
    return f"{left[0]} is left and nobody chose that" if left else ""
