"""Every Python example in the guide and on the front page runs as it is printed."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.train import session

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "docs/guides/your-script.md",
    "docs/guides/elastic.md",
    "docs/guides/parallel.md",
    "README.md",
)


def examples() -> list[Any]:
    """Each block by its page and number."""
    found = []
    for page in PAGES:
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        assert blocks, page
        found += [
            pytest.param(block, id=f"{Path(page).stem}-{number}")
            for number, block in enumerate(blocks, 1)
        ]
    return found


def surroundings() -> dict[str, Any]:
    """What the pages leave to the reader."""
    model = torch.nn.Linear(4, 2)
    return {
        "__name__": "example",
        "torch": torch,
        "model": model,
        "dataset": list(torch.randn(96, 4)),
        "loss_of": lambda model, batch: model(batch).square().mean(),
        "evaluate": lambda _: 1.0,
        "config": 4,
        "GPT": lambda _: model,
        "AdamW": torch.optim.AdamW,
    }


@pytest.mark.parametrize("code", examples())
def test_an_example_runs_as_it_is_printed(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(session, "_joined", False)
    names = surroundings()
    exec(compile("from holdfast.train import join, loader\n" + code, "example", "exec"), names)
    state = names["state"]
    assert state.completed > 0 and names["step"] == state.completed - 1
