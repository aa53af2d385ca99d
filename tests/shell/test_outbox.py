"""Whoever takes nothing of what it is sent is found, and nobody else is."""

from holdfast.shell.outbox import DEADLINE_S, LIMIT_BYTES, Outbox


def test_nothing_waits_for_ever_and_that_is_well() -> None:
    outbox = Outbox()
    assert not any(outbox.observe(100, 0, at) for at in (0.0, DEADLINE_S, 100 * DEADLINE_S))


def test_who_takes_nothing_in_time_is_told() -> None:
    outbox = Outbox()
    assert not outbox.observe(100, 50, 0.0)
    assert not outbox.observe(200, 150, DEADLINE_S - 0.1)  # more was queued, nothing taken
    assert outbox.observe(200, 150, DEADLINE_S) == "it has read nothing for 10.0 s"


def test_too_much_is_told_at_once() -> None:
    outbox = Outbox()
    assert not outbox.observe(LIMIT_BYTES, LIMIT_BYTES, 0.0)
    assert "are unsent" in outbox.observe(LIMIT_BYTES + 1, LIMIT_BYTES + 1, 0.0)


def test_a_slow_one_that_takes_as_much_as_it_is_sent_stays() -> None:
    """What waits is the same at each look, or grows; it is taken nevertheless."""
    outbox = Outbox()
    for second in range(1, 100):
        assert not outbox.observe(1_000 * second, 500 + second, float(second))


def test_the_time_counts_anew_once_everything_was_taken() -> None:
    outbox = Outbox()
    assert not outbox.observe(100, 50, 0.0)
    assert not outbox.observe(100, 0, DEADLINE_S)
    assert not outbox.observe(200, 100, DEADLINE_S + 1)
    assert not outbox.observe(200, 100, 2 * DEADLINE_S)
    assert outbox.observe(200, 100, 2 * DEADLINE_S + 1)


def test_taken_bytes_that_seem_to_come_back_are_no_progress() -> None:
    """Under TLS what waits is counted before and after encryption, which adds a little."""
    outbox = Outbox()
    for tenth in range(100):
        assert not outbox.observe(100_000, 50_000 + 29 * (tenth % 2), tenth / 10)
    assert outbox.observe(100_000, 50_000, DEADLINE_S)
