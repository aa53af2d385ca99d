"""What `holdfast simulate SCENARIO` does and prints."""

from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import Error


def run(
    scenario: str,
    *,
    seed: int | None,
    seeds: int | None,
    settings: Sequence[str],
    compare: str | None,
    sweep: Sequence[str],
    plot: Path | None,
    as_json: bool,
) -> None:
    """Answer a scenario's question."""
    words = (scenario, seed, seeds, settings, compare, sweep, plot, as_json)
    raise Error("usage", f"cannot run {words}", why="not built yet", help="holdfast --help")
