"""What people and programs get to see."""

import errno
import io
import json
import sys

import pytest

from holdfast.cli import main, output
from holdfast.errors import Error, ExitStatus


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _fresh_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_json_wanted", False)


def test_colour_only_on_a_terminal_and_never_with_no_color(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert output.styled("x", "red", Screen()) == "\x1b[31mx\x1b[0m"
    assert output.styled("x", "red", io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.styled("x", "red", Screen()) == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert output.styled("x", "red", Screen()) == "x"


class Closed(io.StringIO):
    """A terminal that was closed."""

    def write(self, text: str, /) -> int:
        raise OSError(errno.EIO, "Input/output error", text)


def test_talk_to_a_closed_terminal_is_lost_without_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Closed())
    output.talk("nobody hears this")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0424, "42 ms"),
        (0.9999, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (3599.4, "59 min 59 s"),
        (3600, "1 h 0 min"),
        (100_000, "27 h 46 min"),
    ],
)
def test_a_length_of_time_reads_well(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


def test_one_is_singular() -> None:
    assert output.count(1, "node") == "1 node"
    assert output.count(2, "process", "processes") == "2 processes"


def test_columns_line_up() -> None:
    lines = output.table(("A", "LONG"), [("wide cell", "x"), ("y", "z")]).splitlines()
    assert lines == ["A          LONG", "wide cell  x", "y          z"]


def test_an_error_has_one_form_for_people_and_one_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "no-such-slug", "--json"]) == ExitStatus.NOT_FOUND
    printed = capsys.readouterr()
    assert printed.err.startswith("error[unknown-slug]: there is no error 'no-such-slug'\n")
    assert "\n  why: " in printed.err
    assert "\n  help: " in printed.err
    error = json.loads(printed.out)["error"]
    assert set(error) == {"slug", "what", "why", "help", "exit_status"}
    assert (error["slug"], error["exit_status"]) == ("unknown-slug", 4)


def test_without_json_an_error_leaves_standard_output_empty(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["explain", "no-such-slug"])
    assert capsys.readouterr().out == ""


def test_error_fields_are_those_of_the_error() -> None:
    error = Error("usage", "what", why="why", help="help")
    assert output.error_fields(error) == {
        "slug": "usage",
        "what": "what",
        "why": "why",
        "help": "help",
        "exit_status": 2,
    }
