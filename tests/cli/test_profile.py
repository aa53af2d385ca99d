"""`holdfast profile` refuses what cannot be, before anybody is asked."""

from pathlib import Path

import pytest

from tests.warm import holdfast


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--ranks", "fastest"], 2, "'fastest' is neither a rank nor `slowest`"),
        (["--ranks", ""], 2, "'' is neither a rank"),
        (["--ranks", "-1"], 2, "'-1' is neither a rank"),
        (["--ranks", "9" * 5000], 2, "is neither a rank"),
        (["--ranks", ",".join(map(str, range(17)))], 2, "at most 16 ranks"),
        (["--steps", "0"], 2, "1 to 50 steps"),
        (["--steps", "51"], 2, "1 to 50 steps"),
        (["--output", "no/folder/trace.json.gz"], 3, "error[output-unwritable]"),
        (["--nsys"], 2, "error[nsys-unavailable]"),
        ([], 4, "error[job-not-found]"),
    ],
)
def test_what_cannot_be_is_refused(home: Path, words: list[str], status: int, said: str) -> None:
    assert not (home / "jobs").exists()
    done = holdfast("profile", "gpt", *words)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert said in done.stderr and "help: " in done.stderr


def test_nsys_is_refused_where_it_is_installed_too(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = home / "nsys"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(home))
    refused = holdfast("profile", "gpt", "--nsys")
    assert refused.returncode == 2 and f"{program} is installed, but on Linux" in refused.stderr
