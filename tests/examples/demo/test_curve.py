"""The plot shows every point where it belongs, and the marks."""

import pytest

from curve import plot

BRAILLE = range(0x2801, 0x2900)


def dots(lines: list[str]) -> int:
    return sum((ord(c) - 0x2800).bit_count() for line in lines for c in line if ord(c) in BRAILLE)


def test_every_point_is_a_dot_where_there_is_room() -> None:
    points = [(float(x), float(x % 7)) for x in range(40)]
    assert dots(plot(points, {}, width=80, height=10)) == 40


def test_falling_curve_goes_from_the_upper_left_to_the_lower_right() -> None:
    lines = plot([(0.0, 2.0), (1.0, 1.0)], {}, width=40, height=5)
    body = lines[1:-2]
    assert body[0].endswith("│⠁") and body[0].startswith("  2.00")
    assert body[-1].startswith("  1.00") and ord(body[-1][-1]) in BRAILLE
    assert len(body[-1]) == 40


def test_marks_stand_over_their_lines() -> None:
    points = [(float(x), 1.0 + x) for x in range(100)]
    lines = plot(points, {"1 fault": 30.0, "2 loss": 80.0}, width=80, height=8)
    for name in ("1 fault", "2 loss"):
        assert lines[-3][lines[0].index(name)] in {"┊", *map(chr, BRAILLE)}


def test_marks_close_together_are_both_named() -> None:
    lines = plot([(0.0, 1.0), (10.0, 2.0)], {"first": 5.0, "second": 5.1}, width=60, height=4)
    assert "first second" in lines[0]


def test_mark_at_the_end_fits_into_the_width() -> None:
    lines = plot([(0.0, 1.0), (10.0, 2.0)], {"a long name": 10.0}, width=60, height=4)
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize("points", [[(3.0, 1.5)], [(0.0, 1.0), (0.0, 1.0)]])
def test_one_point_is_enough(points: list[tuple[float, float]]) -> None:
    assert dots(plot(points, {}, width=40, height=4)) == 1


def test_no_points_are_an_error() -> None:
    with pytest.raises(ValueError, match="arg"):
        plot([], {}, width=40, height=4)
