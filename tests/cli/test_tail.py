"""Reading logs that grow, rotate and do not end."""

from pathlib import Path

import pytest

from holdfast.cli.tail import FILE_BYTES, LINE_BYTES, STATE_TICKS, TICK_BYTES, Line, Tail, prefixed


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "logs" / "attempt-1" / "rank-0.log"
    path.parent.mkdir(parents=True)
    return path


def append(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)


def test_only_whole_lines_are_shown(tmp_path: Path, log: Path) -> None:
    tail = Tail(tmp_path)
    append(log, b"one\ntw")
    assert tail.tick() == [Line(1, 0, "one")]
    append(log, b"o\n")
    assert tail.tick() == [Line(1, 0, "two")]
    assert tail.tick() == []
    tail.close()


def test_the_unfinished_line_comes_when_all_is_over(tmp_path: Path, log: Path) -> None:
    tail = Tail(tmp_path)
    append(log, b"one\nno end")
    assert list(tail.drain()) == [Line(1, 0, "one"), Line(1, 0, "no end")]
    tail.close()


def test_ranks_and_attempts_that_appear_later_are_found(tmp_path: Path, log: Path) -> None:
    tail = Tail(tmp_path)
    append(log, b"a\n")
    tail.tick()
    append(log.with_name("rank-11.log"), b"b\n")
    append(tmp_path / "logs" / "attempt-2" / "rank-0.log", b"c\n")
    assert sorted(tail.tick()) == [Line(1, 11, "b"), Line(2, 0, "c")]
    tail.close()


def test_only_what_was_asked_for_is_read(tmp_path: Path) -> None:
    for attempt in (1, 2):
        for rank in (0, 1):
            append(tmp_path / f"logs/attempt-{attempt}/rank-{rank}.log", b"x\n")
    tail = Tail(tmp_path, rank=1, attempt=2)
    assert tail.tick() == [Line(2, 1, "x")]
    tail.close()


def test_rotation_loses_nothing(tmp_path: Path, log: Path) -> None:
    tail = Tail(tmp_path)
    append(log, b"one\nhal")
    assert tail.tick() == [Line(1, 0, "one")]
    append(log, b"f\nlast of the old\n")
    log.rename(log.with_name("rank-0.log.1"))
    append(log, b"first of the new\n")
    found = [*tail.tick(), *tail.tick()]
    assert [line.text for line in found] == ["half", "last of the old", "first of the new"]
    tail.close()


def test_a_reader_that_comes_late_starts_with_the_older_part(tmp_path: Path, log: Path) -> None:
    append(log.with_name("rank-0.log.1"), b"old\n")
    append(log, b"new\n")
    tail = Tail(tmp_path)
    assert [line.text for line in tail.drain()] == ["old", "new"]
    tail.close()


def test_a_tick_is_bounded_however_much_was_written(tmp_path: Path, log: Path) -> None:
    line = b"x" * 99 + b"\n"
    ranks = 3 * TICK_BYTES // FILE_BYTES
    for rank in range(ranks):
        append(log.with_name(f"rank-{rank}.log"), line * (2 * FILE_BYTES // len(line)))
    tail = Tail(tmp_path)
    assert sum(len(line.text) + 1 for line in tail.tick()) <= TICK_BYTES
    tail.close()


def test_no_rank_waits_for_ever_behind_a_noisy_one(tmp_path: Path, log: Path) -> None:
    ranks = 2 * TICK_BYTES // FILE_BYTES
    for rank in range(ranks):
        append(log.with_name(f"rank-{rank}.log"), (b"x" * 99 + b"\n") * 4 * (FILE_BYTES // 100))
    tail = Tail(tmp_path)
    heard = {line.rank for _ in range(ranks + 1) for line in tail.tick()}
    assert heard == set(range(ranks))
    tail.close()


def test_drain_ends_although_the_writer_does_not(tmp_path: Path, log: Path) -> None:
    append(log, b"x\n" * 1000)
    tail = Tail(tmp_path)
    shown = 0
    for _ in tail.drain():
        append(log, b"x\n")
        shown += 1
    assert 1000 <= shown < 100_000
    tail.close()


def test_who_is_too_far_behind_skips_and_says_so(tmp_path: Path, log: Path) -> None:
    append(log, b"early\n" + b"x\n" * FILE_BYTES + b"late\n")
    tail = Tail(tmp_path, skip_bytes=FILE_BYTES)
    lines = [line.text for line in tail.drain()]
    assert "bytes of output not shown" in lines[0]
    assert "early" not in lines
    assert lines[-1] == "late"
    tail.close()


def test_a_line_without_an_end_is_shown_in_pieces(tmp_path: Path, log: Path) -> None:
    append(log, b"x" * (3 * LINE_BYTES))
    tail = Tail(tmp_path)
    assert [len(line.text) for line in tail.tick()] == [3 * LINE_BYTES]
    tail.close()


def test_of_a_line_that_is_written_over_the_newest_state_is_shown_now_and_then(
    tmp_path: Path, log: Path
) -> None:
    """A progress bar ends its line after the last step: until then nothing would be shown."""
    append(log, b"first\r 0/9\r 1/9")
    tail = Tail(tmp_path)
    shown = [line for _ in range(2 * STATE_TICKS) for line in tail.tick()]
    assert [line.text for line in shown] == [" 1/9"]
    append(log, b"\r 2/9\r 3/9\r")
    shown = [line for _ in range(STATE_TICKS) for line in tail.tick()]
    assert [line.text for line in shown] == [" 3/9"]
    append(log, b"\r 9/9\r\nend\rof it\r\n")
    assert [line.text for line in tail.tick()] == [" 9/9", "of it"]
    append(log, b" 1/9\r" * LINE_BYTES)
    assert [line.text for line in tail.drain()] == [" 1/9"]
    tail.close()


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path, log: Path) -> None:
    append(log, b"\xff\x00ok\r\n")
    tail = Tail(tmp_path)
    assert prefixed(tail.tick()) == "[0] \ufffd\x00ok\n"
    tail.close()


def test_what_was_there_before_can_be_left_out(tmp_path: Path, log: Path) -> None:
    append(log, b"before\n")
    tail = Tail(tmp_path)
    tail.seek_end()
    append(log, b"after\n")
    assert [line.text for line in tail.tick()] == ["after"]
    tail.close()
