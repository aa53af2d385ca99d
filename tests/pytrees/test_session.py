"""What `run.track()` refuses before the first step."""

import numpy as np
import pytest

from holdfast.errors import Error
from holdfast.pytrees.session import TreeRun


def test_batches_that_nobody_could_leave_out_are_not_promised_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_SKIP_BATCHES", "3")
    with pytest.raises(Error, match="has no loader") as raised:
        TreeRun(None).track(w=np.zeros(2))
    assert raised.value.slug == "loader-missing"
    monkeypatch.setenv("HOLDFAST_SKIP_BATCHES", "0")
    assert list(TreeRun(None).track(w=np.zeros(2)).steps(2)) == [0, 1]
