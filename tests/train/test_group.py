"""What `join()` takes, and what it refuses before anything else happens."""

import os
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast.errors import Error
from holdfast.train import group, session
from holdfast.train.placement import Placement

ALONE = Placement(0, 0, 1, 1, 0, 0, distributed=True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"backend": "glue"}, "no backend 'glue'"),
        ({"backend": ""}, "no backend ''"),
        ({"backend": "cpu:gloo,cuda:nickel"}, "no backend 'nickel'"),
        ({"backend": 5}, "backend=5"),
        ({"backend": ["gloo"]}, "backend=['gloo']"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": True}, "timeout=True"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"timeout": "600"}, "timeout='600'"),
        ({"timeout": timedelta(0)}, "not positive"),
        ({"device": "gpu"}, "device='gpu'"),
        ({"device": 3.5}, "device=3.5"),
        ({"device": True}, "device=True"),
    ],
)
def test_what_pytorch_cannot_use_is_named(arguments: dict[str, Any], words: str) -> None:
    given = {"backend": None, "timeout": None, "device": None, **arguments}
    with pytest.raises(Error) as caught:
        group.check_wishes(**given)
    assert caught.value.slug == "join-invalid"
    assert words in str(caught.value)


def test_seconds_and_devices_become_what_pytorch_takes() -> None:
    assert group.check_wishes("gloo", 1.5, "cpu") == (timedelta(seconds=1.5), torch.device("cpu"))
    assert group.check_wishes("cpu:gloo", timedelta(hours=2), None) == (timedelta(hours=2), None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_an_error_and_not_the_cpu() -> None:
    with pytest.raises(Error, match="there is no device cuda:0"):
        group.pick_device(ALONE, torch.device("cuda"))


def test_a_job_for_the_processor_computes_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DEVICE", "cpu")
    assert group.pick_device(ALONE) == torch.device("cpu")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("kind", ["cuda", "rocm", "xpu", "tpu"])
def test_a_kind_that_this_pytorch_has_not_is_an_error_and_not_the_cpu(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DEVICE", kind)
    with pytest.raises(Error, match=f"there is no device of kind {kind}") as raised:
        group.pick_device(ALONE)
    assert "has cpu here" in raised.value.why


def test_arguments_that_come_too_late_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    cpu = torch.device("cpu")
    group.join_group(ALONE, cpu, None, None)
    group.require_choice(None, None)
    for backend, timeout in (("gloo", None), (None, timedelta(1))):
        with pytest.raises(Error, match="the process group already exists"):
            group.require_choice(backend, timeout)


def test_what_was_refused_can_be_asked_for_again_in_another_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "_joined", False)
    for name in [name for name in os.environ if name.startswith("HOLDFAST")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setenv("RANK", "0")
    for refused in ({"backend": 5}, {"device": "cuda:99"}, {"timeout": 5.0}):
        with pytest.raises(Error) as caught:
            session.join(**refused)
        assert caught.value.slug == "join-invalid"
    made = session.join(device="cpu")
    with pytest.raises(Error) as caught:
        made.track(thing=5)
    assert caught.value.slug == "not-tracked"
    made.track(model=torch.nn.Linear(1, 1))
    for again in (session.join, made.track):
        with pytest.raises(Error, match="called twice"):
            again()
