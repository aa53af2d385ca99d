"""Random numbers go on where they were, also where the job goes on with other hardware."""

import pytest
import torch

from holdfast.train import random_state

CPU = torch.device("cpu")


def test_state_of_a_job_without_a_gpu_goes_on_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its generator has no state to put back; all others have."""
    touched: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *given: touched.append(given))
    state = random_state.capture(CPU)
    drawn = torch.rand(4)
    random_state.restore(state, torch.device("cuda", 0))
    assert torch.equal(torch.rand(4), drawn) and not touched
