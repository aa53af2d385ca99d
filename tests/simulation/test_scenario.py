"""Scenarios: what is accepted, and one clear error for what is not."""

from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.errors import Error
from holdfast.simulation import scenario
from holdfast.simulation.plan import work_out
from holdfast.simulation.scenario import load, shipped

NAMES = ["byterobust-9600", "llama3-16k", "moon-100k", "rsc1-8k", "spot-256"]


def refused(*settings: str, name: str = "rsc1-8k") -> Error:
    with pytest.raises(Error) as raised:
        load(name, settings)
    assert raised.value.status == 2
    return raised.value


def test_the_shipped_scenarios_are_these_and_each_can_be_worked_out() -> None:
    assert shipped() == NAMES
    for name in NAMES:
        found, mix = load(name)
        assert found.name == name
        assert found.about
        assert work_out(found, mix).spares >= 1


def test_any_number_can_be_overridden_by_its_path() -> None:
    found, mix = load("rsc1-8k", ["spares=5", "checkpoint.interval_s=60", "failures.mix=rsc2"])
    assert found.spares == 5
    assert found.checkpoint.interval_s == 60
    assert mix.rate_per_1000_node_days == 2.34


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("times.detectoin_s=3", "times.detectoin_s: unknown key; did you mean detection_s?"),
        ("nodez=3", "nodez: unknown key; did you mean nodes?"),
        ("nodes=0", "nodes: must be greater than or equal to 1, not 0"),
        ("times.start_s=-1", "times.start_s: must be greater than or equal to 0, not -1"),
        ("days=.inf", "days: "),
        ("step_s=.nan", "step_s: "),
        ("spares=-2", "spares: must be greater than or equal to 0 or must be 'auto', not -2"),
        ("losses=[{at_h: 1, nodes: 2000}]", "2000 nodes are to be lost, but only 1024 train"),
        ("cluster=3", "cluster: "),
    ],
)
def test_a_wrong_number_is_named_with_its_path(setting: str, said: str) -> None:
    error = refused(setting)
    assert error.slug == "scenario-invalid"
    assert said in error.why


def test_all_problems_are_told_at_once() -> None:
    error = refused("nodes=0", "tiems.start_s=1", "remote.interval_s=0")
    assert error.what == "rsc1-8k: 3 problems"
    assert all(word in error.why for word in ("nodes", "tiems", "remote.interval_s"))


def test_a_name_that_is_nearly_right_is_corrected() -> None:
    error = refused(name="lama3-16k")
    assert error.slug == "scenario-not-found"
    assert error.help == "did you mean llama3-16k?"


@pytest.mark.parametrize("setting", ["spares", "=3", "nodes.count=3", "times.start_s=[1"])
def test_a_setting_that_sets_nothing_is_refused(setting: str) -> None:
    assert refused(setting).slug == "usage"


@pytest.mark.parametrize("text", ["- 1", "{", "", "nodes: 3\n\tdays: 4"])
def test_a_file_that_is_no_scenario_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert refused(name=str(path)).slug == "scenario-unreadable"


def test_a_file_may_have_a_mix_of_its_own_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\nnodes: 4\nfailures: {mix: faults.yaml}\n")
    (tmp_path / "faults.yaml").write_text(
        "source: us\nassumed: nothing\nrate_per_1000_node_days: 9\n"
        "causes: {bang: {weight: 1, shows: node, detection_s: 1}}\n"
    )
    found, mix = load(str(tmp_path / "mine.yaml"))
    assert (found.nodes, mix.rate_per_1000_node_days) == (4, 9)
    (tmp_path / "faults.yaml").write_text("source: us\nrate: 9\n")
    why = refused(name=str(tmp_path / "mine.yaml")).why
    assert "assumed: is required" in why
    assert "rate: unknown key" in why


def test_a_missing_mix_is_named() -> None:
    assert "nowhere.yaml" in refused("failures.mix=nowhere.yaml").what


@pytest.mark.parametrize(
    "words",
    [
        ["rsc1-8k", "--set", "nodez=3"],
        ["rsc1-8k", "--sweep", "spares"],
        ["rsc1-8k", "--sweep", "spares=3..1"],
        ["rsc1-8k", "--sweep", "spares=0..100000"],
        ["rsc1-8k", "--compare", "slurm"],
        ["rsc1-8k", "--plot", "out.pdf"],
        ["rsc1-8k", "--plot", "nowhere/out.png"],
        ["nothing-like-it"],
    ],
)
def test_the_command_line_ends_with_status_2_and_one_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("error[") == 1
    assert "why: " in said
    assert "help: " in said


def test_keys_are_known_at_every_depth() -> None:
    assert "start_s" in scenario.keys_of(scenario.Scenario, ["times"])
    assert scenario.keys_of(scenario.Scenario, ["times", "start_s"]) == []
