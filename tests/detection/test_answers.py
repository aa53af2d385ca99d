"""A machine that answers nothing is lost sooner than a process that only says nothing."""

from holdfast.detection.answers import Answers, TcpState

TIMEOUT_S = 5.0
RETRY_S = 0.2
LOOK_S = 0.05


class Network:
    """Nodes that were heard just now, and a controller that looks at them. `dark`: their machines
    answer nothing; `paused`: their processes say nothing."""

    def __init__(self, nodes: str = "abc", *, retry_s: float = RETRY_S) -> None:
        self.now = 100.0
        self.answers = Answers(TIMEOUT_S, len(nodes))
        self.heard = dict.fromkeys(nodes, self.now)
        self.answered = dict.fromkeys(nodes, self.now)
        self.asked_at: dict[str, float] = {}
        self.dark = self.paused = ""
        self.retry_s = retry_s
        self.round_trip_s = 0.001

    def _tcp_state(self, node: str) -> TcpState:
        asked_at = self.asked_at.get(node)
        if node not in self.dark or asked_at is None:
            self.asked_at.pop(node, None)
            if node not in self.dark:
                self.answered[node] = self.now
            return TcpState(False, 0, self.now, self.answered[node], self.round_trip_s)
        tries = int((self.now - asked_at + 1e-9) / self.retry_s)
        sent_at = asked_at + tries * self.retry_s
        return TcpState(True, tries, sent_at, self.answered[node], self.round_trip_s)

    def passes(self, seconds: float) -> dict[str, float]:
        """So much time; who is lost, and after what time of it."""
        lost, begin = dict[str, float](), self.now
        while self.now < begin + seconds - 1e-9:
            self.now += LOOK_S
            well = [n for n in self.heard if n not in self.dark + self.paused]
            self.heard.update(dict.fromkeys(well, self.now))
            silent = [n for n, at in self.heard.items() if at <= self.now - self.answers.ask_s]
            self.answers.only(silent)
            for node in silent:
                if self.answers.is_to_be_asked(node, self._tcp_state(node), self.now):
                    self.asked_at.setdefault(node, self.now)
            gone = self.answers.gone(self.heard.values(), self.now)
            lost |= dict.fromkeys(gone, self.now - begin)
        return lost


def test_a_machine_that_answers_nothing_is_lost_within_two_seconds_and_named_once() -> None:
    network = Network()
    network.dark = "b"
    lost = network.passes(60.0)
    assert lost.keys() == {"b"} and 1.5 < lost["b"] < 1.7


def test_a_link_that_is_dark_for_longer_than_a_second_costs_nobody() -> None:
    network = Network()
    for _ in range(20):
        network.dark = "b"
        assert network.passes(1.35) == {}
        network.dark = ""
        assert network.passes(0.3) == {}


def test_a_process_that_is_paused_has_a_machine_that_answers() -> None:
    network = Network()
    network.paused = "b"
    assert network.passes(30.0) == {}


def test_a_machine_that_stops_after_its_process_is_lost_as_soon() -> None:
    network = Network()
    network.paused = "b"
    assert network.passes(1.0) == {}
    network.dark = "b"
    assert 1.4 < network.passes(3.0)["b"] <= 1.7


def test_whoever_is_cut_off_from_everybody_names_nobody() -> None:
    network = Network()
    network.dark = "abc"
    assert network.passes(30.0) == {}


def test_who_hears_fewer_than_do_not_answer_is_taken_for_cut_off() -> None:
    network = Network("abcde")
    network.dark = "abc"
    assert network.passes(30.0) == {}
    network.dark = "ab"
    assert network.passes(3.0).keys() == {"a", "b"}


def test_the_only_node_is_not_named_because_nobody_else_is_heard() -> None:
    network = Network("a")
    network.dark = "a"
    assert network.passes(30.0) == {}


def test_where_a_kernel_repeats_seldom_it_is_waited_for_the_next_time() -> None:
    """What is sent again after longer and longer pauses proves less darkness than time passes."""
    network = Network(retry_s=0.9)
    network.dark = "b"
    assert network.passes(2.9) == {}
    assert network.passes(1.0).keys() == {"b"}


def test_where_the_way_is_long_answers_are_waited_for() -> None:
    network = Network()
    network.round_trip_s, network.dark = 0.5, "b"
    assert network.passes(30.0) == {}, "each try has come before the answer to the one before"


def test_after_we_have_not_listened_everybody_is_asked_anew() -> None:
    network = Network()
    network.dark = "b"
    assert network.passes(1.5) == {}
    network.answers.forgive()
    assert network.passes(1.35) == {}
    assert network.passes(1.0).keys() == {"b"}


def test_it_is_known_whose_machine_has_acknowledged_what_it_was_asked() -> None:
    network = Network()
    network.paused, network.dark = "a", "b"
    network.passes(1.0)
    assert [network.answers.waits_for(node) for node in "abc"] == [False, True, None]


def test_what_the_kernel_does_not_tell_is_held_against_nobody() -> None:
    answers = Answers(TIMEOUT_S, 2)
    for step in range(200):
        answers.only(["b"])
        assert not answers.is_to_be_asked("b", None, step * LOOK_S)
        assert answers.gone([step * LOOK_S], step * LOOK_S) == []


def test_nodes_of_a_large_job_are_asked_later_and_hardly_ever() -> None:
    """Each gives a sign of life by itself within a quarter of the time."""
    assert Answers(TIMEOUT_S, 50).ask_s == 0.1, "between two reports"
    assert Answers(TIMEOUT_S, 125).ask_s == Answers(TIMEOUT_S, 375).ask_s == 0.25
    assert TIMEOUT_S / 4 < Answers(TIMEOUT_S, 12_500).ask_s < TIMEOUT_S / 3
