"""Where durable tiers are, on a laptop and in a pod, and what workers and others are told."""

from pathlib import Path
from typing import Any

from holdfast.agent.storage import facts, places, protocol
from holdfast.checkpoint.settings import VARIABLE, TierRule, place_in, settings_in
from holdfast.checkpoint.tiers import Tier
from holdfast.events import CheckpointFailed
from holdfast.spec import Job, job_from_dict


def job(**spec: Any) -> Job:
    return job_from_dict({"name": "gpt", "script": "t.py", **spec}, where="test")


def test_nodes_of_one_machine_have_a_disk_each_and_find_it_again(tmp_path: Path) -> None:
    said = job(checkpoints={"local": {"path": str(tmp_path)}})
    found = [places.places_of(said, {})[0].where for _ in range(2)]
    assert found == [str(tmp_path / "gpt" / "node-0"), str(tmp_path / "gpt" / "node-1")]


def test_a_laptop_uses_the_tiers_whose_folder_is_said() -> None:
    cluster = {"shared": {"pvc": "claim"}, "archive": {"url": "s3://b/p", "secret": "keys"}}
    assert places.places_of(job(checkpoints=cluster), {}) == ()
    laptop = job(checkpoints={"shared": {"path": "/x", "keep": 7}, "archive": {"url": "s3://b/p/"}})
    assert places.places_of(laptop, {}) == (
        protocol.DurablePlace(tier=Tier.SHARED, where="/x/gpt", keep=7, max_bytes_per_s=None),
        protocol.DurablePlace(
            tier=Tier.ARCHIVE, where="s3://b/p/gpt", keep=3, max_bytes_per_s=None
        ),
    )


def test_a_pod_uses_what_its_manifest_says() -> None:
    environ = {"HOLDFAST_CHECKPOINT_SHARED": "/mnt/gpt/3"}
    (place,) = places.places_of(job(checkpoints={"shared": {"pvc": "claim"}}), environ)
    assert place.where == "/mnt/gpt/3"


def test_workers_are_told_places_cadence_and_copies() -> None:
    archive = {"url": "s3://b", "golden_every_steps": 1000, "endpoint": "http://minio:9000"}
    said = job(
        checkpoints={"shared": {"path": "/x", "every_s": 90}, "archive": archive,
                     "start_from": "s3://old/gpt", "fresh": "second try", "take_over": True},
        snapshots={"copies": 2},
        recovery={"mttf_h": 2},
    )  # fmt: skip
    told = places.variables(said, places.places_of(said, {}), "h:1", "this one")
    settings = settings_in(told)
    assert (settings.shared, settings.local) == (TierRule(every_s=90), None)
    assert settings.archive == TierRule(every_steps=1000)
    assert (settings.copies, settings.mttf_s) == (2, 7200)
    assert (settings.owner, settings.take_over) == ("this one", True)
    assert place_in(Tier.SHARED, told) == "/x/gpt"
    assert told["HOLDFAST_RESTORE_FROM"] == "s3://old/gpt"
    assert told["HOLDFAST_RESTORE_FRESH"] == "second try"
    assert [place.fresh for place in places.places_of(said, {})] == ["second try"] * 2
    assert told["AWS_ENDPOINT_URL"] == "http://minio:9000"
    assert told["HOLDFAST_STORAGE_ADDRESS"] == "h:1" and VARIABLE in told


def test_a_save_that_goes_on_failing_is_told_more_and_more_rarely() -> None:
    told = [
        facts.of(
            protocol.SaveFailed(tier=Tier.SHARED, attempt=1, step=2, why="x", failures=failures),
            "n",
        )
        for failures in range(1, 10)
    ]
    counts = [fact.failures for fact in told if isinstance(fact, CheckpointFailed)]
    assert counts == [1, 2, 4, 8]
