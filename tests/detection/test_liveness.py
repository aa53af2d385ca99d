"""A node that is not heard for the timeout is named; others never are. Before that its silence is
told, and costs nobody anything."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.detection import Liveness
from holdfast.detection.liveness import Silences, SilencesTold

TIMEOUT_S = 5.0
ASK_S = 0.1  # of silence, and it is asked
LOOK_S = 0.1


def test_a_silent_node_is_named_with_its_silence_and_a_heard_one_is_not() -> None:
    liveness = Liveness()
    liveness.heard("a", 10.0)
    liveness.heard("b", 11.0)
    liveness.heard("a", 14.0)
    assert liveness.silent(15.9, 5.0) == []
    assert liveness.silent(16.0, 5.0) == [("b", 5.0)]
    assert liveness.silent(20.0, 5.0) == [("b", 9.0), ("a", 6.0)]


def test_signs_of_life_may_be_passed_on_in_any_order() -> None:
    liveness = Liveness()
    liveness.heard("a", 12.0)
    liveness.heard("b", 10.0)
    assert liveness.silent(15.0, 5.0) == [("b", 5.0)]
    assert liveness.next_deadline(5.0) == 15.0


def test_a_forgotten_node_is_not_watched() -> None:
    liveness = Liveness()
    liveness.heard("a", 0.0)
    liveness.forget("a")
    liveness.forget("never heard of")
    assert liveness.silent(99.0, 5.0) == []
    assert liveness.next_deadline(5.0) is None


def test_silence_while_nobody_listened_is_not_counted_and_nobody_is_heard_in_the_future() -> None:
    liveness = Liveness()
    liveness.heard("a", 0.0)
    liveness.heard("b", 1.0)
    liveness.heard("c", 59.0)
    liveness.forget("b")
    liveness.forgive(60.0, 57.0)
    assert liveness.silent(61.9, 5.0) == []
    assert liveness.silent(62.0, 5.0) == [("a", 5.0)]
    assert liveness.silent(65.0, 5.0) == [("a", 8.0), ("c", 5.0)]


def test_the_next_deadline_is_that_of_the_node_heard_longest_ago() -> None:
    liveness = Liveness()
    liveness.heard("a", 1.0)
    liveness.heard("b", 2.0)
    assert liveness.next_deadline(5.0) == 6.0
    liveness.heard("a", 3.0)
    assert liveness.next_deadline(5.0) == 7.0


SIGNS = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 9), st.booleans()))


@given(SIGNS, st.integers(1, 20))
def test_exactly_the_silent_are_named(signs: list[tuple[str, int, bool]], timeout: int) -> None:
    liveness, known, now = Liveness(), dict[str, int](), 0
    for node, gap, forget in signs:
        now += gap
        if forget:
            liveness.forget(node)
            known.pop(node, None)
        else:
            liveness.heard(node, now)
            known[node] = now
    expected = {(n, now - at) for n, at in known.items() if now - at >= timeout}
    assert set(liveness.silent(now, timeout)) == expected
    deadline = liveness.next_deadline(timeout)
    assert deadline == (min(known.values()) + timeout if known else None)
    if deadline is not None:
        assert liveness.silent(deadline, timeout)


class Watch:
    """Nodes that say something five times a second, and somebody who looks ten times."""

    def __init__(self, nodes: str = "abc") -> None:
        self.now = 100.0
        self.silences = Silences(TIMEOUT_S)
        self.heard = dict.fromkeys(nodes, self.now)
        self.silent = ""

    def look(self, *, after_s: float = LOOK_S) -> SilencesTold:
        """So much later."""
        self.now += after_s
        for node in self.heard.keys() - set(self.silent):
            if self.now - self.heard[node] >= 0.2:
                self.heard[node] = self.now
        asked = {n: at for n, at in self.heard.items() if self.now - at >= ASK_S}
        return self.silences.look(asked, self.heard, self.now)

    def passes(self, seconds: float, *, look_s: float = LOOK_S) -> list[tuple[str, str, float]]:
        """What is told meanwhile: begun or over, of whom, and after which time of it."""
        begin, told = self.now, list[tuple[str, str, float]]()
        while self.now < begin + seconds - 1e-9:
            found = self.look(after_s=look_s)
            told += [("begun", node, self.now - begin) for node in found.begun]
            told += [("over", node, self.now - begin) for node in found.over]
        return told


def test_silence_is_told_within_two_seconds_and_once() -> None:
    watch = Watch()
    assert watch.passes(10.0) == []
    watch.silent = "b"
    ((what, node, after_s),) = watch.passes(60.0)
    assert (what, node) == ("begun", "b") and 1.5 < after_s < 1.9


def test_it_is_over_once_the_node_has_been_heard_for_a_while() -> None:
    watch = Watch()
    watch.silent = "b"
    watch.passes(3.0)
    watch.silent = ""
    ((what, node, after_s),) = watch.passes(60.0)
    assert (what, node) == ("over", "b") and 5.0 <= after_s < 6.0


def test_what_takes_a_second_and_a_half_is_not_told() -> None:
    """Garbage is collected, a large process is forked, a disk is written to."""
    watch = Watch()
    for _ in range(20):
        watch.silent = "b"
        assert watch.passes(1.5) == []
        watch.silent = ""
        assert watch.passes(0.5) == []


def test_who_is_paused_again_and_again_is_told_of_once() -> None:
    watch = Watch()
    told = []
    for _ in range(20):
        watch.silent = "b"
        told += watch.passes(2.5)
        watch.silent = ""
        told += watch.passes(1.0)
    assert [what for what, _, _ in told] == ["begun"]


def test_whoever_looks_late_does_not_take_that_for_silence() -> None:
    """It is starved: what was sent meanwhile is read before each look, and is old by then."""
    watch = Watch()
    watch.heard = {node: at - 0.15 for node, at in watch.heard.items()}
    for _ in range(50):
        watch.now += 0.9
        heard = dict.fromkeys("abc", watch.now - 0.15)
        assert watch.silences.look(heard, heard, watch.now) == SilencesTold([], [])


def test_after_nobody_has_listened_silence_counts_anew() -> None:
    watch = Watch()
    watch.silent = "b"
    assert watch.passes(1.4) == []
    watch.now += 60.0
    watch.silences.forgive()
    ((_, node, after_s),) = watch.passes(10.0)
    assert node == "b" and 1.5 <= after_s < 1.8


def test_where_most_are_silent_nobody_is_told_of() -> None:
    """Perhaps it is we who hear nobody."""
    watch = Watch()
    watch.silent = "abc"
    assert watch.passes(30.0) == []
    watch = Watch("abcd")
    watch.silent = "ab"
    assert {node for _, node, _ in watch.passes(3.0)} == {"a", "b"}


def test_the_only_node_is_told_of() -> None:
    watch = Watch("a")
    watch.silent = "a"
    assert [what for what, _, _ in watch.passes(30.0)] == ["begun"]


def test_what_a_former_controller_has_told_is_over_in_the_end_and_of_the_lost_nothing_is() -> None:
    watch = Watch()
    watch.silences.told("ab", watch.now)
    watch.silences.keep("bc")
    assert [(what, node) for what, node, _ in watch.passes(30.0)] == [("over", "b")]
