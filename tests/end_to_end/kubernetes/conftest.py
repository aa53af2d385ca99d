"""One namespace for each test, and a table of what happened at the end.

Without HOLDFAST_E2E_KUBECONFIG every test here is skipped, and says so.
"""

import os
import secrets
import time
from collections.abc import Iterator

import pytest

from tests.end_to_end.kubernetes.cluster import ENGINES, KUBECONFIG, RealCluster

TABLE = pytest.StashKey[list[tuple[str, str, str]]]()


@pytest.fixture
def cluster() -> Iterator[RealCluster]:
    """A fresh namespace, deleted afterwards."""
    if not os.environ.get(KUBECONFIG):
        pytest.skip(f"{KUBECONFIG} names no kubeconfig of a cluster to test on")
    found = RealCluster(f"holdfast-e2e-{secrets.token_hex(3)}")
    found.make()
    yield found
    found.remove()


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest, cluster: RealCluster) -> str:
    """Every engine that the cluster has; choose one with -k."""
    name: str = request.param
    if not cluster.serves(name):
        api, plural = ENGINES[name]
        pytest.skip(f"the cluster does not serve {plural} of {api}, which engine {name} needs")
    return name


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Iterator[dict[str, float]]:
    """Seconds that a test measured, for the table."""
    measured: dict[str, float] = {}
    began = time.monotonic()
    yield measured
    told = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in measured.items())
    rows = request.config.stash.setdefault(TABLE, [])
    rows.append((request.node.name, f"{time.monotonic() - began:.0f} s", told))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table."""
    rows = terminalreporter.config.stash.get(TABLE, [])
    if rows:
        terminalreporter.section("what happened on the cluster")
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            terminalreporter.write_line("  ".join(cells))
