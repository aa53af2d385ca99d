"""Commands that errors and guides tell people to run are commands."""

import ast
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.cli.app import app
from tests.tidy.source import package

DOCS = Path(__file__).parents[2] / "docs"
INLINE = re.compile(r"(?<!`)`(holdfast [^`\n]+)`")
BLOCK = re.compile(r"^(holdfast [^\n]+)$", re.MULTILINE)
ENDS = re.compile(r"   |, |[;|&#<>()]|\\$")  # of a command


def test_commands_in_the_help_of_errors_can_be_parsed() -> None:
    told = [
        (source.path, text)
        for source in package()
        for node in source.all(ast.keyword)
        if node.arg == "help"
        for text in BLOCK.findall(_text(node.value))
    ]
    assert len(told) > 50
    assert not [(str(path), text, why) for path, text in told if (why := _wrong(text))]


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.stem)
def test_commands_in_documents_can_be_parsed(page: Path) -> None:
    text = page.read_text()
    told = [*INLINE.findall(text), *BLOCK.findall(text)]
    assert not [(one, why) for one in told if (why := _wrong(one))]


def test_what_no_command_takes_is_found() -> None:
    assert _wrong("holdfast nodes gpt") and _wrong("holdfast why gpt --nothing")
    assert not _wrong("holdfast why NAME") and not _wrong("holdfast run train.py --anything 3")


@cache
def _commands() -> dict[str, Any]:
    commands: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
    return commands


def _wrong(text: str) -> str:
    """What the parser has against this command; that a file is not there, or a value is a word in
    its place, is no matter."""
    words = _words(text)
    command: Any = _commands().get(words[0]) if words else None
    while hasattr(command, "commands"):
        command, words = command.commands.get("".join(words[1:2])), words[1:]
    if command is None:
        return ""
    try:
        command.make_context(words[0], words[1:])
    except Exception as wrong:
        told = getattr(wrong, "message", "")
        return told if re.search("unexpected extra|No such option", told) else ""
    return ""


def _words(text: str) -> list[str]:
    text = ENDS.split(text.removeprefix("holdfast "))[0]
    try:
        return [word for word in shlex.split(text) if word != "..."]
    except ValueError:  # a lone apostrophe
        return []


def _text(node: ast.expr) -> str:
    """A string as far as it is known: what is put in first may be a name, the others flags."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            told = "".join(_text(part) or "\0" for part in parts)
            return re.sub(r"(?<= )\0(?= |$)", "x", told, count=1).replace("\0", "")
        case _:
            return ""
