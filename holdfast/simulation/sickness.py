"""Which nodes of a simulated world are really sick, and who may be given up for that.

A fault that will not pass is one at once; an alert is one when it comes again. Ages of facts leave
out how long they were on their way, and a clock may be set: so alerts up to twenty minutes apart
may be taken for two in five minutes, in worlds whose clocks are set any two.
"""

from holdfast.events import Severity

NEAR_S = 1200.0


class Sickness:
    """What has struck which node."""

    def __init__(self, clock_is_set: bool) -> None:
        self._near_s = float("inf") if clock_is_set else NEAR_S
        self._faulty: set[str] = set()
        self._alerts: dict[tuple[str, str], float] = {}  # node and condition → the newest

    def struck(self, node: str, condition: str, severity: Severity, now: float) -> None:
        """This is so from now on, and the agent tells it."""
        before = self._alerts.get((node, condition))
        if severity is Severity.ALERT:
            self._alerts[node, condition] = now
        again = before is not None and now - before < self._near_s
        goes = severity in (Severity.FATAL, Severity.LEAVES)
        if goes or (severity is Severity.ALERT and again):
            self._faulty.add(node)

    def is_faulty(self, node: str) -> bool:
        """Whether nothing should train there, or it was announced that it goes."""
        return node in self._faulty
