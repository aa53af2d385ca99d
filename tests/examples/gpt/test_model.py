"""The example's model is what its description says."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from model import GPT, VOCABULARY, Shape

FOLDER = Path(__file__).parents[3] / "examples" / "gpt"
SMALL = Shape(context=16, layers=2, heads=2, width=32)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are faster so, and other tests keep their core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tokens() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(VOCABULARY, (4, SMALL.context), generator=generator)


def test_has_one_to_three_million_parameters() -> None:
    assert 1e6 < sum(p.numel() for p in GPT(Shape()).parameters()) < 3e6


def test_is_readable_in_one_sitting() -> None:
    files = [path for path in FOLDER.iterdir() if path.is_file()]
    assert sum(len(path.read_text().splitlines()) for path in files) <= 400


def test_begins_with_the_loss_of_a_fair_guess(tokens: torch.Tensor) -> None:
    torch.manual_seed(0)
    loss = GPT(SMALL)(tokens, tokens.roll(1, dims=1))
    assert loss.item() == pytest.approx(math.log(VOCABULARY), rel=0.02)


def test_sees_only_what_came_before(tokens: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = GPT(SMALL)
    embedded = model.embedding(tokens)
    changed = embedded.clone()
    changed[:, 10:] += 1.0
    before, after = model.blocks(embedded), model.blocks(changed)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.equal(before[:, 10:], after[:, 10:])


def test_learns_a_text_by_heart(tokens: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = GPT(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1.0
