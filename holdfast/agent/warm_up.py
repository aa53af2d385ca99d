"""When to make the workers and the store of the next attempt ahead of time.

Never while an attempt is coming up: recovery comes first. A script that reports steps has come up
with its first step; of any other it is assumed after a moment.
"""

from holdfast.agent.node_attempt import NodeAttempt

AFTER_START_S = 2.0  # for scripts that report no steps
AFTER_STOP_S = 1.0  # no new attempt so far: be warm when it comes


class WarmUp:
    """Whether a warm-up is owed, and when it is due at the latest (`_at`, monotonic)."""

    def __init__(self, reports_steps: bool) -> None:
        self._reports_steps = reports_steps
        self._at: float | None = None

    def attempt_started(self, now: float) -> None:
        """Its workers were the warm ones."""
        self._at = float("inf") if self._reports_steps else now + AFTER_START_S

    def attempt_stopped(self, now: float) -> None:
        """The next one may come at once, and then has what is warm already."""
        self._at = now + AFTER_STOP_S

    def take_due(self, attempt: NodeAttempt | None, now: float) -> bool:
        """Whether to warm up now; said once."""
        due = self._at is not None and self._may(attempt, now, self._at)
        if due:
            self._at = None
        return due

    def _may(self, attempt: NodeAttempt | None, now: float, at: float) -> bool:
        if attempt is not None and attempt.stop_at is not None and not attempt.stopped:
            return False
        trains = attempt is not None and attempt.trains and not attempt.stopped
        return trains or now >= at
