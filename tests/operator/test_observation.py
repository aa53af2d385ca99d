"""How objects of the engines say that they have ended."""

import pytest

from holdfast.operator.observation import engine_outcome


@pytest.mark.parametrize(
    ("deployed", "job", "outcome"),
    [
        ("Running", "SUCCEEDED", None),  # its submitter has not ended
        ("Complete", "SUCCEEDED", "succeeded"),
        ("Complete", "STOPPED", "stopped"),
        ("Retrying", "FAILED", None),
        ("Failed", "FAILED", "failed"),
        ("Failed", "RUNNING", "failed"),  # its time was over
        ("ValidationFailed", "", "failed"),
        ("Suspended", "", None),
    ],
)
def test_a_rayjob_says_it_in_words_of_its_own(deployed: str, job: str, outcome: str | None) -> None:
    status = {"jobDeploymentStatus": deployed, "jobStatus": job}
    assert engine_outcome({"kind": "RayJob", "status": status}) == outcome


def test_a_rayjob_that_nobody_has_seen_has_not_ended() -> None:
    assert engine_outcome({"kind": "RayJob"}) is None
