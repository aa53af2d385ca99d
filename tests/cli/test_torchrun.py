"""torchrun's flags: each one is known, and none changes a job's meaning in silence."""

import os

import pytest

from holdfast.cli import torchrun
from holdfast.cli.torchrun import EXTRA, FLAGS, Treatment, notes
from holdfast.errors import Error


def test_every_flag_of_torchrun_is_in_the_table() -> None:
    run = pytest.importorskip("torch.distributed.run")
    theirs = {name for action in run.get_args_parser()._actions for name in action.option_strings}
    ours = {name for flag in FLAGS for name in flag.names}
    assert theirs - {"-h", "--help"} == ours


def test_no_two_flags_share_a_key() -> None:
    assert len({flag.key for flag in FLAGS}) == len(FLAGS)


@pytest.mark.parametrize("flag", [f for f in EXTRA if f.treatment is Treatment.ACCEPTED])
def test_an_accepted_flag_gives_a_note(flag: torchrun.Flag) -> None:
    value = "x" if flag.takes_value else True
    assert notes({flag.key: value}, nodes=2) == [f"{flag.names[0]}: not needed; {flag.text}"]


@pytest.mark.parametrize("flag", [f for f in EXTRA if f.treatment is Treatment.REFUSED])
def test_a_refused_flag_is_an_error(flag: torchrun.Flag) -> None:
    value = "elsewhere.example:1" if flag.takes_value else True
    with pytest.raises(Error, match="is not supported") as caught:
        notes({flag.key: value}, nodes=2)
    assert caught.value.slug == "usage"


@pytest.mark.parametrize(
    ("given", "nodes"),
    [
        ({"node_rank": "0"}, 2),
        ({"role": "default"}, 1),
        ({"rdzv_endpoint": "localhost:0"}, 2),
        ({"rdzv_endpoint": "[::1]:29500"}, 2),
        ({"rdzv_endpoint": f"{os.uname().nodename}:29500"}, 2),
        ({"master_addr": "127.0.0.1"}, 2),
        ({"master_addr": "elsewhere.example"}, 1),
    ],
)
def test_a_refused_flag_with_a_harmless_value_is_let_pass(
    given: dict[str, str], nodes: int
) -> None:
    assert notes(given, nodes)


def test_flags_with_the_same_reason_share_a_line() -> None:
    (line,) = notes({"standalone": True, "rdzv_backend": "c10d"}, nodes=1)
    assert line.startswith("--standalone, --rdzv-backend: not needed;")


@pytest.mark.parametrize(
    ("text", "least", "most"), [("1", 1, 1), ("4", 4, 4), ("2:2", 2, 2), ("1:4", 1, 4)]
)
def test_nnodes_is_a_number_or_a_range(text: str, least: int, most: int) -> None:
    assert torchrun.node_range(text) == (least, most)


@pytest.mark.parametrize("text", ["4:1", "0", "0:4", "x", "", ":", "2:", ":2", "-1", "1:2:3"])
def test_other_nnodes_are_refused(text: str) -> None:
    with pytest.raises(Error, match="--nnodes"):
        torchrun.node_range(text)


def test_workers_per_node_mean_what_they_mean_to_torchrun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = os.cpu_count()
    monkeypatch.setattr(torchrun, "gpu_count", lambda: 0)
    assert torchrun.workers_per_node("3") == 3
    assert torchrun.workers_per_node("cpu") == cores
    assert torchrun.workers_per_node("auto") == cores
    with pytest.raises(Error, match="--nproc-per-node gpu"):
        torchrun.workers_per_node("gpu")
    monkeypatch.setattr(torchrun, "gpu_count", lambda: 8)
    assert torchrun.workers_per_node("auto") == "auto"
    assert torchrun.workers_per_node("gpu") == "auto"
    assert torchrun.workers_per_node("cpu") == cores


@pytest.mark.parametrize("text", ["0", "-2", "many", "1.5", ""])
def test_other_numbers_of_workers_are_refused(text: str) -> None:
    with pytest.raises(Error, match="--nproc-per-node"):
        torchrun.workers_per_node(text)


def test_variables_of_torchrun_are_not_read_in_silence() -> None:
    assert torchrun.environment_notes({"PATH": "/"}) == []
    (note,) = torchrun.environment_notes({"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1"})
    assert note.startswith("PET_NNODES, PET_NPROC_PER_NODE: not read")
