"""How often to save: where the time that saving costs equals the work that a fault costs."""

import math


def interval_s(save_s: float, mttf_s: float, step_s: float = 0.0) -> float:
    """Seconds of training between two saves: √(2·w·M), but not more often than every step.

    `save_s` is what one save blocks training, `mttf_s` the mean time between faults of the job.
    Source: J. W. Young, CACM 17(9), 1974; Daly's refinement matters only where a save takes a good
    part of the time between two faults (`holdfast.goodput.formulas.daly_s`). A snapshot in memory
    blocks so little that the answer is every step.
    """
    return max(step_s, math.sqrt(2 * save_s * mttf_s))
