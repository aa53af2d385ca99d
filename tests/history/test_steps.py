"""A curve says what was written, in bounded space, whatever became of its writer."""

import math
import os
import random
import statistics
from pathlib import Path

import pytest

from holdfast.history import COLUMNS, CurveFile, StepPoint, last_point, read_curve, steps

LOSS = COLUMNS.index("loss")


def point(step: int, loss: float | None, attempt: int = 1) -> StepPoint:
    values: list[float | None] = [None] * len(COLUMNS)
    values[LOSS] = loss
    return StepPoint(step, 1000.0 + step, attempt, values)


def written(path: Path, losses: dict[int, float], attempt: int = 1) -> None:
    file = CurveFile(path)
    file.put([point(step, loss, attempt) for step, loss in losses.items()])
    file.close()


def drawn(path: Path, first: int = 0, last: int | None = None, points: int = 1000) -> list[float]:
    return [v for v in read_curve(path, first, last, points).mean["loss"] if v is not None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "curve.bin"


def test_few_steps_are_given_one_by_one(path: Path) -> None:
    written(path, {step: step / 4 for step in range(100)})
    found = read_curve(path)
    assert (found.width, found.step) == (1, list(range(100)))
    assert found.mean["loss"] == [step / 4 for step in range(100)]
    assert found.mean["lr"] == [None] * 100


@pytest.mark.parametrize("points", [7, 50, 400])
def test_many_are_given_by_stretches_that_lose_no_extreme(path: Path, points: int) -> None:
    rng = random.Random(points)
    losses = {step: rng.uniform(1, 2) for step in range(3_000)}
    losses[1_234] = 9.0
    written(path, losses)
    found = read_curve(path, points=points)
    assert len(found.step) <= points + 1 and found.step[-1] == 2_999
    assert max(v for v in found.high["loss"] if v is not None) == 9.0
    begin = 0
    for n, end in enumerate(found.step):
        inside = [losses[step] for step in range(begin, end + 1)]
        assert found.low["loss"][n] == pytest.approx(min(inside))
        assert found.mean["loss"][n] == pytest.approx(statistics.fmean(inside), rel=1e-5)
        begin = end + 1


def test_zooming_in_gives_every_step_again(path: Path) -> None:
    losses = {step: float(step % 97) for step in range(20_000)}
    written(path, losses)
    assert drawn(path, 12_000, 12_300) == [losses[step] for step in range(12_000, 12_301)]


def test_what_was_kept_longest_ago_is_coarser_and_the_file_does_not_grow(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "RING", 64)
    monkeypatch.setattr(steps, "LEVEL_BYTES", 64 * steps.BUCKET.size)
    written(path, dict.fromkeys(range(30_000), 1.5))
    assert path.stat().st_size <= steps.HEADER_BYTES + steps.LEVELS * 64 * steps.BUCKET.size
    everything = read_curve(path, points=64)
    assert everything.step[0] <= 4_096 and everything.step[-1] == 29_999
    old = read_curve(path, 1_000, 9_000, 1_000)
    assert old.mean["loss"] and set(old.mean["loss"]) == {1.5}
    assert len(drawn(path, 29_950)) == 50


def test_steps_that_are_done_again_take_the_place_of_what_they_were(path: Path) -> None:
    written(path, dict.fromkeys(range(1_000), 5.0))
    written(path, dict.fromkeys(range(700, 1_200), 2.0), attempt=2)
    assert set(drawn(path, 700, 1_100)) == {2.0}
    assert set(drawn(path, 0, 699)) == {5.0}
    assert read_curve(path, 650, 750).attempt == [1] * 50 + [2] * 51
    assert max(read_curve(path, 704, 1_199, 10).high["loss"]) == 2.0  # type: ignore[type-var]


@pytest.mark.parametrize("points", [10, 100, 4_000])
def test_after_a_restore_the_curve_ends_at_its_newest_step_in_the_order_of_time(
    path: Path, points: int
) -> None:
    written(path, dict.fromkeys(range(1_000), 5.0))
    file = CurveFile(path)
    for step in range(700, 900):
        file.put([point(step, 2.0, 2)._replace(at=9_000.0 + step)])
        if step % 37 == 0 or step in (700, 899):
            found = read_curve(path, points=points)
            assert found.last == found.step[-1] == step and found.at == sorted(found.at)
            assert found.attempt[-1] == 2 and found.mean["loss"][-1] == pytest.approx(2.0, abs=3)
            assert read_curve(path, step + 1) == steps.EMPTY
    file.close()


@pytest.mark.parametrize("wrong", [(1 << 34) + 1_500, (1 << 52) + 1_507])
def test_one_wrong_number_neither_spoils_the_curve_nor_costs_without_bounds(
    path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    monkeypatch.setattr(steps, "RING", 4096)
    monkeypatch.setattr(steps, "LEVEL_BYTES", 4096 * steps.BUCKET.size)
    looked = list[int]()
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *of: looked.append(of[1]) or pread(*of))  # type: ignore[func-returns-value]
    written(path, dict.fromkeys(range(1_000), 5.0))
    written(path, {wrong: 1.0})
    looked.clear()
    assert read_curve(path).last == wrong
    assert sum(looked) <= steps.LEVELS * 4096 * steps.BUCKET.size + 64
    written(path, dict.fromkeys(range(1_000, 2_000), 3.0))
    found = read_curve(path, points=4_000)
    assert found.step == list(range(2_000))
    assert found.mean["loss"] == [5.0] * 1_000 + [3.0] * 1_000


def test_what_is_not_finite_is_a_gap(path: Path) -> None:
    written(path, {0: 1.0, 1: math.nan, 2: math.inf, 3: 2.0})
    assert read_curve(path).mean["loss"] == [1.0, None, None, 2.0]
    assert last_point(path) == (3, 1003.0, 1, [2.0, *[None] * (len(COLUMNS) - 1)])


def test_a_bucket_that_was_torn_is_left_out(path: Path) -> None:
    written(path, dict.fromkeys(range(50), 1.0))
    with path.open("r+b") as file:
        file.seek(steps.HEADER_BYTES + 20 * steps.BUCKET.size + 30)
        file.write(b"\xff\xff\xff")
    assert read_curve(path).step == [step for step in range(50) if step != 20]
    written(path, {50: 2.0})
    assert len(drawn(path)) == 50


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 200, b"garbage" * 4_000])
def test_a_file_that_is_no_curve_is_empty_and_is_written_over(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert read_curve(path) == steps.EMPTY and last_point(path) is None
    written(path, {0: 1.0, 1: 2.0})
    assert drawn(path) == [1.0, 2.0]


def test_there_is_none_where_nothing_can_be_read(path: Path) -> None:
    assert read_curve(path) == steps.EMPTY
    path.mkdir()
    assert read_curve(path) == steps.EMPTY
