"""The log of a Trainer in each snapshot."""

import json
from typing import Any

import pytest


def test_each_entry_is_written_once_and_all_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.integrations.transformers import LogText

    written: list[Any] = []
    plain = json.dumps

    def dumps(one: Any) -> str:
        written.append(one)
        return plain(one)

    monkeypatch.setattr(json, "dumps", dumps)
    text = LogText()
    log: list[dict[str, Any]] = [{"loss": 0.1, "step": 1}]
    assert LogText.entries(text.of(log)) == log
    log.append({"note": "two\nlines\u2028", "step": 2})
    assert LogText.entries(text.of(log)) == log
    assert text.of(log) and written == log
    other = [{"loss": 0.5, "step": 9}]
    assert LogText.entries(text.of(other)) == other
    other.clear()
    assert text.of(other) == b""
