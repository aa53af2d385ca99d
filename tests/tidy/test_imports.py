"""What is imported when: a command that prints help must not pay for a training framework."""

import json
import subprocess
import sys

import pytest

import holdfast

HEAVY = {
    "torch", "numpy", "pydantic", "msgspec", "websockets", "psutil", "yaml", "rich", "asyncio",
}  # fmt: skip
REPORT = "import sys, json; print('\\n' + json.dumps(sorted(m.split('.')[0] for m in sys.modules)))"


def imported_by(code: str) -> set[str]:
    """Top-level modules that a new interpreter has after `code`."""
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\n{REPORT}"], capture_output=True, text=True, check=True
    )
    return set(json.loads(run.stdout.splitlines()[-1]))


def test_importing_holdfast_imports_nothing_else() -> None:
    assert not imported_by("import holdfast") & (HEAVY | {"typer", "importlib.metadata"})


@pytest.mark.parametrize("words", [["--help"], ["version"], ["--version"]])
def test_help_and_version_load_nothing_heavy(words: list[str]) -> None:
    code = f"from holdfast.cli import main; assert main({words!r}) == 0"
    assert not imported_by(code) & HEAVY


@pytest.mark.parametrize("words", [["run", "--help"], ["explain"], ["explain", "job-invalid"]])
def test_other_light_commands_load_only_what_the_parser_loads(words: list[str]) -> None:
    code = f"from holdfast.cli import main; assert main({words!r}) == 0"
    assert not imported_by(code) & (HEAVY - {"pydantic"})


def test_an_agent_is_light() -> None:
    found = imported_by("import holdfast.agent.agent")
    assert not found & {"torch", "numpy", "typer", "rich"}


def test_stopping_a_job_of_a_cluster_loads_no_job_files() -> None:
    orders = "holdfast.drivers.kubernetes.remote_orders"
    code = f"import sys, {orders}; assert 'holdfast.spec' not in sys.modules"
    assert not imported_by(code) & {"pydantic", "torch", "numpy", "typer", "rich"}


@pytest.mark.parametrize("driver", ["local", "kubernetes.driver"])
def test_a_controller_knows_no_torch_and_starts_without_numpy(driver: str) -> None:
    """That comes with the first times at which ranks enter their collectives."""
    found = imported_by(f"import holdfast.drivers.{driver}")
    assert not found & {"torch", "numpy", "typer", "rich"}


def test_the_public_names_are_these() -> None:
    assert holdfast.__all__ == [
        "Error",
        "ExitStatus",
        "Goodput",
        "Incident",
        "Job",
        "JobStatus",
        "Outcome",
        "__version__",
        "job_from_dict",
        "job_from_yaml",
        "job_schema",
    ]
    assert len(holdfast.__all__) <= 15
    assert dir(holdfast) == holdfast.__all__


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(holdfast, name) is not None


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Manager'"):
        holdfast.Manager  # noqa: B018
