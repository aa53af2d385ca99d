"""The job files in recipes/kubernetes render to sound manifests on every engine that they name."""

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from holdfast.drivers.kubernetes.lint import lint
from holdfast.drivers.kubernetes.manifests.render import render, requested
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.spec.cluster import ENGINES, Engine, Mode
from holdfast.spec.load import job_as_written
from tests.drivers.kubernetes.schemas import problems
from tests.tidy.source import ROOT

FOLDER = ROOT / "recipes" / "kubernetes"
RECIPES = sorted(FOLDER.glob("*.yaml"))


class Case(NamedTuple):
    """One rendering of a job file."""

    recipe: Path
    engine: Engine
    mode: Mode


def directive(recipe: Path, word: str) -> list[str]:
    """The words after `# WORD:` in the first lines of a recipe."""
    lines = recipe.read_text().splitlines()[:4]
    told = next((line for line in lines if line.startswith(f"# {word}: ")), "")
    return told.partition(": ")[2].replace(",", "").split()


def cases() -> list[Case]:
    """Every engine and mode that a recipe names."""
    return [
        Case(recipe, cast("Engine", engine), cast("Mode", mode))
        for recipe in RECIPES
        for engine in directive(recipe, "engines")
        for mode in directive(recipe, "modes")
    ]


def bodies(case: Case) -> list[Body]:
    job = job_as_written(case.recipe)
    return render(requested(job, engine=case.engine, mode=case.mode))


def name(case: Case) -> str:
    return f"{case.recipe.stem}.{case.engine}.{case.mode}"


@pytest.mark.parametrize("case", cases(), ids=name)
def test_a_recipe_renders_strictly_and_cleanly(case: Case) -> None:
    found = bodies(case)
    once = {(body["kind"], len(str(body))): body for body in found}.values()  # 512 pods are alike
    assert [f"{b['kind']}: {p}" for b in once for p in problems(b)] == []
    assert [finding for finding in lint(found) if finding.level == "error"] == []


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_says_what_it_is_for_and_how_to_run_it(recipe: Path) -> None:
    lines = recipe.read_text().splitlines()
    assert lines[0].startswith("# ") and lines[0].endswith(".")
    assert set(directive(recipe, "engines")) <= set(ENGINES)
    assert directive(recipe, "run")[:3] == [
        "holdfast",
        "render",
        f"recipes/kubernetes/{recipe.name}",
    ]
    assert f"({recipe.name})" in (FOLDER / "README.md").read_text()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_the_command_of_a_recipe_names_what_it_renders_on(recipe: Path) -> None:
    job, words = job_as_written(recipe), directive(recipe, "run")
    said = dict(pairwise(words))
    engine = said.get("--engine", job.kubernetes.engine)
    mode = said.get("--mode", job.kubernetes.mode)
    assert engine in directive(recipe, "engines")
    assert mode in directive(recipe, "modes")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_the_script_of_a_recipe_exists(recipe: Path) -> None:
    job = job_as_written(recipe)
    words = [job.script or "", *(job.command or ()), *job.args]
    scripts = [word for word in words if word.endswith(".py")]
    assert scripts
    assert [word for word in scripts if not (ROOT / word).is_file()] == []


def test_the_large_job_has_the_size_that_it_is_for() -> None:
    found = bodies(Case(FOLDER / "mpi-512x8.yaml", "mpijob", "plain"))
    job = next(body for body in found if body["kind"] == "MPIJob")
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 512
    assert launcher["command"][:3] == ["mpirun", "-np", "4096"]
    assert "MASTER_ADDR" in launcher["command"]
