"""The referee of what is given up, where nodes are sick."""

import msgspec

from holdfast.actions import Fence, StopAttempt
from holdfast.events import Diagnosed, HealthChanged, Severity
from holdfast.simulation.referees import Efficiency
from tests.simulation.test_referees import entry, hardship, in_trouble


def test_a_sick_node_may_be_replaced_and_after_one_alert_a_well_one_may_not() -> None:
    referee = Efficiency(hardship())
    fence = Fence(node="n0", reason="", blamed=True)
    verdict = Diagnosed(attempt=1, cause="hardware-fault", summary="", confidence=1.0)
    heard = HealthChanged(node="n0", condition="link-down", severity=Severity.ALERT)
    order = StopAttempt(attempt=1, grace_s=0.0, reason="n0: link-down")
    referee.sickness.struck("n0", "link-down", Severity.ALERT, 0.0)
    assert "was well" in referee.journaled(entry(heard, order), in_trouble)
    assert "is replaced" in referee.journaled(entry(verdict, fence), in_trouble)
    referee.sickness.struck("n0", "link-down", Severity.ALERT, 5000.0)
    assert "is replaced" in referee.journaled(entry(verdict, fence), in_trouble)
    referee.sickness.struck("n0", "link-down", Severity.ALERT, 5200.0)
    assert not referee.journaled(entry(verdict, fence), in_trouble)
    second = msgspec.structs.replace(order, attempt=2)
    assert not referee.journaled(entry(heard, second), in_trouble)
