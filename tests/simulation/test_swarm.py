"""`holdfast simulate --swarm` and `--seed`: as a process of their own, also over a planted bug."""

import json
import multiprocessing
import os
import pty
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import journal
from holdfast.errors import Error
from holdfast.simulation.swarm import command, run, swarm
from tests import warm
from tests.more import long
from tests.patience import PATIENCE_S
from tests.simulation.mutants import MUTANTS

SMALL = ("--hours", "2", "--nodes", "6")
BUG = MUTANTS["a lost node is not fenced"]


def simulate(
    folder: Path, *words: str, environment: Mapping[str, str] = os.environ
) -> "subprocess.CompletedProcess[str]":
    """The command in `folder`; a package that lies there is the one that runs."""
    if not (folder / "holdfast").exists():
        return warm.holdfast("simulate", *words, env={**environment, "TMPDIR": str(folder)})
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "simulate", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**environment, "TMPDIR": str(folder)},
        timeout=PATIENCE_S,
    )


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package that has a bug."""
    folder = tmp_path_factory.mktemp("broken")
    source = Path(holdfast.__file__).parent
    shutil.copytree(source, folder / "holdfast", ignore=shutil.ignore_patterns("*.pyc.*"))
    path = folder / "holdfast" / BUG.file
    path.write_text(BUG.planted(path.read_text()))
    return folder


def words_of(line: str) -> Sequence[str]:
    program, verb, *words = shlex.split(line)
    assert (program, verb) == ("holdfast", "simulate")
    return words


def test_a_swarm_in_which_nothing_is_wrong_ends_with_status_0(tmp_path: Path) -> None:
    ended = simulate(tmp_path, "--swarm", "8", *SMALL)
    assert ended.returncode == 0
    assert ended.stdout.startswith("8 worlds, ")
    assert ended.stdout.count("\n") == 1
    assert ended.stderr == ""  # no progress bar where nobody looks


def test_a_failing_seed_is_printed_as_the_command_that_shows_it_again(
    broken: Path, tmp_path: Path
) -> None:
    found = simulate(broken, "--swarm", "12", *SMALL)
    assert found.returncode == 1
    first, *commands = found.stdout.splitlines()
    assert "violation" in first and commands
    fouls = [line for line in found.stderr.splitlines() if line.startswith("violation: ")]
    assert len(fouls) == len(commands)
    again = simulate(broken, *words_of(commands[0]))
    assert again.returncode == 1
    assert fouls[0] in again.stdout.splitlines()
    assert any(foul.startswith(f"violation: {BUG.breaks} at ") for foul in fouls)
    assert simulate(tmp_path, *words_of(commands[0])).returncode == 0  # the bug made it fail


@long
def test_json_has_for_each_foul_what_the_text_has(broken: Path) -> None:
    _, *commands = simulate(broken, "--swarm", "12", *SMALL).stdout.splitlines()
    found = simulate(broken, "--swarm", "12", *SMALL, "--json")
    assert found.returncode == 1
    answer = json.loads(found.stdout)
    assert set(answer) == {"worlds", "outcomes", "fouls"}
    assert answer["worlds"] == sum(answer["outcomes"].values()) == 12
    assert answer["outcomes"]["foul"] == len(answer["fouls"])
    assert [foul["command"] for foul in answer["fouls"]] == commands
    seeds = [foul["seed"] for foul in answer["fouls"]]
    assert seeds == sorted(seeds)


def test_a_seed_tells_its_story_and_where_its_journal_is(tmp_path: Path) -> None:
    words = ("--seed", "7", *SMALL)
    told = simulate(tmp_path, *words)
    assert told.returncode == 0
    assert told.stdout.splitlines()[0].split() == ["0.000", "JobSubmitted", "AskNodes", "6"]
    answer = json.loads(simulate(tmp_path, *words, "--json").stdout)
    entries = list(journal.entries(Path(answer["journal"])))
    world, lines = run(7, hours=2.0, nodes=6)
    assert Path(answer["journal"]).read_bytes() == lines
    assert answer["world"]["entries"] == len(entries) == world.entries
    assert set(answer["world"]) == set(type(world).__struct_fields__)


@long
def test_a_terminal_sees_how_far_it_is(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = ("--swarm", "8", *SMALL)
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "simulate", *words],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    seen = _all_of(ours)
    assert process.wait(PATIENCE_S) == 0
    assert "worlds, 0 fouls" in seen
    assert "8/8" in seen


def _all_of(terminal: int) -> str:
    """What is written to a terminal until the other end closes it."""
    seen = b""
    try:
        while piece := os.read(terminal, 4096):
            seen += piece
    except OSError:  # how Linux says that nobody is left at the other end
        pass
    finally:
        os.close(terminal)
    return seen.decode()


def test_a_swarm_tells_the_same_of_each_seed_as_the_seed_alone() -> None:
    told = sorted(swarm(30, 8, hours=2.0, nodes=4), key=lambda world: world.seed)
    assert told == [run(seed, hours=2.0, nodes=4)[0] for seed in range(30, 38)]


def children() -> set[Any]:
    """Our processes; those of a swarm that was closed may still be ending."""
    return set(multiprocessing.active_children())


def test_worlds_are_lived_through_on_all_cores() -> None:
    before = children()
    worlds = swarm(0, 12, hours=1.0, nodes=4)
    next(worlds)
    assert len(children() - before) == min(len(os.sched_getaffinity(0)), 12)
    worlds.close()


def test_a_process_that_is_killed_ends_the_swarm_instead_of_hanging_it() -> None:
    before = children()
    worlds = swarm(0, 10_000, hours=1.0, nodes=2)
    next(worlds)
    (children() - before).pop().kill()
    with pytest.raises(Error, match="simulation-killed"):
        list(worlds)


@pytest.mark.parametrize(
    ("hours", "nodes", "options"),
    [(24.0, 16, ""), (0.1, 16, " --hours 0.1"), (1 / 3, 2, f" --hours {1 / 3!r} --nodes 2")],
)
def test_a_command_names_what_is_not_the_default(hours: float, nodes: int, options: str) -> None:
    assert command(5, hours, nodes) == f"holdfast simulate --seed 5{options}"


@pytest.mark.parametrize(
    "option", [("--compare", "torchrun"), ("--plot", "a.png"), ("--seeds", "3")]
)
def test_options_of_a_scenario_are_refused_without_one(option: tuple[str, str]) -> None:
    found = warm.holdfast("simulate", "--swarm", "1", *option)
    assert found.returncode == 2
    assert f"{option[0]} requires a scenario" in found.stderr
