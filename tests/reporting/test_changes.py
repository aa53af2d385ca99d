"""What to change is known from what was measured, and is recommended only if it must be a gain."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import recorded_job
from holdfast.dashboard.job_record import JobLook, JobRecord
from holdfast.goodput.formulas import mttf_s, optimal_interval_s
from holdfast.reporting import changes, words
from holdfast.reporting.changes import what_to_change
from holdfast.reporting.measured import modelled
from holdfast.reporting.shapes import ComparedSetting, WhatToChange

NOW = 1_800_000_000.0
BROKEN = """
source: a test
assumed: every fault is a device that stays broken
rate_per_1000_node_days: 1
causes: {device: {weight: 1, shows: device, stays: 1.0, detection_s: 10}}
"""
SELDOM = 300  # steps between two snapshots, far too many
ROOMY = ("cluster.rack_losses_per_1000_days=0", "cluster.switch_losses_per_1000_days=0")


@pytest.fixture(autouse=True)
def few_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for differences that are as plain as here."""
    monkeypatch.setattr(changes, "SEEDS", changes.SEEDS_LEAST)


def without(monkeypatch: pytest.MonkeyPatch, *alternatives: str) -> None:
    """Alternatives that a test does not ask for are not lived through."""
    for name in alternatives:
        monkeypatch.setattr(changes, f"_{name}", lambda _: [])


def price_alone_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worlds of the first question are those of the next ones, too."""
    live, lived = changes._lived_through, list[Any]()

    def remembered(*given: Any) -> Any:
        if not lived:
            lived.append(live(*given))
        return lived[0]

    monkeypatch.setattr(changes, "_lived_through", remembered)


def look(folder: Path, *, every: int | None = SELDOM, **how: Any) -> JobLook:
    """At a job whose snapshots are `every` so many steps of 10 s."""
    spec: dict[str, Any] = {} if every is None else {"snapshots": {"every_steps": every}}
    world = (*ROOMY, *how.pop("world", ()), f"checkpoint.interval_s={10 * (every or 1)}")
    recorded_job.record(folder, until=NOW, world=world, **spec, **how)
    return JobRecord(folder).look()


def answer(seen: JobLook) -> WhatToChange:
    found = what_to_change(seen)
    assert not isinstance(found, str), found
    return found


def of(found: WhatToChange, words: str) -> ComparedSetting:
    return next(one for one in found.changes if words in one.what)


def test_snapshots_that_are_far_too_rare_are_to_be_taken_as_often_as_the_formula_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "spares")
    found = answer(look(tmp_path / "gpt", days=6, nodes=8, rate=1000.0))
    given = found.inputs
    rate = given.rate_per_1000_node_days / 1000 / 86_400
    assert given.incidents_count > 30 and given.snapshot_every_known
    assert given.mttf_s == pytest.approx(mttf_s(8, rate))
    best = round(optimal_interval_s(8, rate, given.snapshot_s) / given.step_s)
    chosen = [one for one in found.changes if one.recommended]
    assert f"snapshots: {{every_steps: {max(1, best)}}}" in {one.setting for one in chosen}
    most = max(chosen, key=lambda one: one.gain)
    assert most.gain > 0.02 and most.gain_low > 0 and most.what in found.verdict
    worse = of(found, f"every {2 * SELDOM} steps")
    assert worse.gain < 0 and not worse.recommended


def test_the_model_of_the_settings_as_they_are_agrees_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "alternatives")
    found = answer(look(tmp_path / "gpt", days=6, nodes=8, rate=1000.0, every=30))
    as_it_is = found.changes[0]
    assert as_it_is.ettr_low < found.measured_ettr < as_it_is.ettr_high
    assert as_it_is.ettr == pytest.approx(found.measured_ettr, abs=0.02)
    assert (as_it_is.gain, as_it_is.gain_low, as_it_is.gain_high) == (0, 0, 0)


def test_few_incidents_say_little_and_nothing_follows_from_them(tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "nodes": 8,
        "rate": 1000.0,
        "every": 10,
        "world": ("checkpoint.save_s=1",),
    }
    model = modelled(look(tmp_path / "much", days=6, **how))
    assert not isinstance(model, str)
    much = model.inputs
    found = answer(look(tmp_path / "few", days=0.2, **how))
    few = found.inputs
    assert few.incidents_count < 5 < much.incidents_count
    assert few.rate_high / few.rate_low > 4 * much.rate_high / much.rate_low
    assert few.rate_low < few.rate_per_1000_node_days < few.rate_high
    assert not any(one.recommended for one in found.changes)
    assert "known only to a factor of" in found.verdict


def test_a_spare_is_worth_it_where_training_waited_for_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    price_alone_differs(monkeypatch)
    without(monkeypatch, "intervals")
    mix = tmp_path / "broken.yaml"
    mix.write_text(BROKEN)
    waits = ("spares=0", "times.image_s=3000", f"failures.mix={mix}")
    seen = look(tmp_path / "gpt", days=8, nodes=8, rate=400.0, every=4, world=waits)
    found = answer(seen)
    spare, elastic = of(found, "1 spare instead of 0"), of(found, "elastic")
    assert found.inputs.new_node_s > 3000
    assert spare.recommended and spare.gain_low > 0 and spare.setting == "nodes: {spares: 1}"
    assert elastic.gain == pytest.approx(spare.gain, rel=0.25), "seven of eight nodes train on"
    assert "costs 20.00 an hour more, but each productive hour costs less" in spare.note
    dear = of(answer(seen._replace(cost_per_hour=40.0)), "1 spare instead of 0")
    assert dear.gain == spare.gain and not dear.recommended
    assert "each productive hour costs more" in dear.note


def test_an_interval_that_is_only_inferred_is_no_ground_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "spares")
    seen = look(tmp_path / "gpt", days=6, nodes=8, rate=1000.0, every=None,
                world=(f"checkpoint.interval_s={10 * SELDOM}",))  # fmt: skip
    found = answer(seen)
    assert not found.inputs.snapshot_every_known
    assert any("inferred" in text for text in found.inputs.assumed)
    assert not any(one.recommended for one in found.changes if "snapshot" in one.what)


def test_without_incidents_or_steps_it_says_why_nothing_can_be_said(tmp_path: Path) -> None:
    calm = what_to_change(look(tmp_path / "calm", days=1, nodes=2, rate=0.0))
    assert isinstance(calm, str) and "no incident" in calm and "fewer than 3.7 a day" in calm
    seen = look(tmp_path / "other", days=1, nodes=8, rate=1000.0)
    blind = what_to_change(seen._replace(status=_without_steps(seen)))
    assert isinstance(blind, str) and "no steps were reported" in blind


def _without_steps(seen: JobLook) -> Any:
    import msgspec

    return msgspec.structs.replace(seen.status, step=None)


def test_worlds_that_take_too_long_are_not_waited_for_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "ENOUGH_S", -1.0)
    told = what_to_change(look(tmp_path / "gpt", days=1, nodes=4, rate=1000.0))
    assert isinstance(told, str) and "worlds of 4 nodes take too long on this machine" in told


def test_patience_ends_the_comparison_but_leaves_enough_worlds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "PATIENCE_S", -1.0)
    monkeypatch.setattr(changes, "SEEDS", 8)
    monkeypatch.setattr(changes, "SEEDS_LEAST", 1)
    seen = look(tmp_path / "gpt", days=1, nodes=4, rate=1000.0)
    found = answer(seen)
    assert found.changes[-1].what.startswith("elastic")  # it is computed from the first one's
    assert found.worlds_count == 3 * changes.SEEDS_LEAST * (len(found.changes) - 1)
    assert found == answer(seen), "the same journal, the same answer"


def test_of_two_values_of_a_key_the_better_one_is_to_be_written_down() -> None:
    setting = ComparedSetting(
        what="", setting="snapshots: {every_steps: 9}", ettr=0.9, ettr_low=0.9, ettr_high=0.9,
        gain=0.2, gain_low=0.1, gain_high=0.3, recommended=True,
    )  # fmt: skip
    less = msgspec.structs.replace(setting, setting="snapshots: {every_steps: 2}", gain=0.1)
    spare = msgspec.structs.replace(less, setting="nodes: {spares: 1}")
    doubtful = msgspec.structs.replace(spare, setting="nodes: {spares: 2}", recommended=False)
    told = words.settings([setting, less, spare, doubtful])
    assert sorted(told) == [spare.setting, setting.setting]
