"""What `@record` of torch.distributed.elastic has left is the worker's own account of its end."""

import json
from pathlib import Path

import pytest

from holdfast.agent.error_file import error_in
from tests.agent.conftest import Node

STACK = """Traceback (most recent call last):
  File "/code/train.py", line 7, in main
    raise ValueError("too small: 3")
ValueError: too small: 3
"""


def recorded(stack: object) -> str:
    extra = {"py_callstack": stack, "timestamp": "1"}
    return json.dumps({"message": {"message": "ValueError: too small: 3", "extraInfo": extra}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (recorded(STACK), ("ValueError", "too small: 3", "/code/train.py", 7)),
        (recorded("no traceback"), ("ValueError", "too small: 3", "", 0)),
        (recorded(STACK)[:-20], None),
        ('{"message": "killed", "timestamp": 3}', None),
        ("[" * 100_000, None),
        ("", None),
    ],
)
def test_the_exception_is_read_if_it_is_whole(
    tmp_path: Path, text: str, expected: tuple[str, str, str, int] | None
) -> None:
    (tmp_path / "error.json").write_text(text)
    error = error_in(tmp_path / "error.json")
    assert (error and (error.type, error.message, error.file, error.line)) == expected


def test_without_a_file_there_is_none(tmp_path: Path) -> None:
    assert error_in(tmp_path / "none.json") is None
    assert error_in(tmp_path) is None
    assert error_in(None) is None


def test_a_program_that_says_no_more_than_what_it_recorded_is_understood(node: Node) -> None:
    script = 'printf %s "$WORDS" > "$TORCHELASTIC_ERROR_FILE"; exit 3'
    controller, agent = node(command=["/bin/sh", "-c", script], env={"WORDS": recorded(STACK)})
    controller.ready()
    controller.start()
    exited = controller.exited()
    assert exited.exit_code == 3
    assert exited.error is not None and exited.error.message == "too small: 3"
    assert (agent.folder / "logs/attempt-1/rank-0.error.json").exists()
