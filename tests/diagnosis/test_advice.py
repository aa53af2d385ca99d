"""Whatever an incident is called, there is something to do about it."""

from holdfast.diagnosis import CAUSES
from holdfast.diagnosis.advice import ADVICE


def test_every_cause_comes_with_what_to_do_about_it() -> None:
    assert set(ADVICE) == set(CAUSES)
    assert all(text.endswith((".", ").")) and len(text) > 20 for text in ADVICE.values())
