"""For how long a job is restarted whose environment fails, such as storage that is away.

Nobody can do anything about it but wait, so the same error again is no reason to end, and the cap
on restarts is waited for. What ends such a job is a whole window without any progress, or as many
restarts without any as somebody has asked for.
"""

from holdfast.controller.policies import restart
from holdfast.controller.policies.replace import ROUNDING_S
from holdfast.controller.policies.situation import Situation
from holdfast.counts import count


def delay_s(s: Situation) -> float:
    """How long to wait before the next attempt; where the cap is used, until it no longer is."""
    means, history = s.means, s.history
    wait_s = restart.patience_s(history.fruitless, means.max_restarts, means.window_s)
    if history.restarts >= means.max_restarts:
        wait_s = max(wait_s, history.freed_s + ROUNDING_S)
    return wait_s


def lasts_too_long(s: Situation) -> bool:
    """Whether the environment has kept the job from any progress for longer than it may."""
    if s.means.exact:
        return s.history.barren >= s.means.max_restarts
    return s.history.trouble_s is not None and s.history.trouble_s >= s.means.window_s


def kept_text(s: Situation) -> str:
    """An account of that, of a job that ends with it."""
    kept = f"errors of the environment prevented any progress for {s.history.trouble_s or 0:.0f} s"
    return f"{kept}{through(s)}; last: {s.trouble.summary}"


def through(s: Situation) -> str:
    """How many restarts there were since the last progress."""
    return f", through {restarts_text(s)}"


def restarts_text(s: Situation) -> str:
    """The same in words."""
    return count(s.history.barren, "restart")


def may_outwait(s: Situation) -> bool:
    """Whether the cap is waited for: nobody set it for this, and the script did nothing wrong."""
    return s.trouble.environment and not s.means.exact and bool(s.history.restarts)
