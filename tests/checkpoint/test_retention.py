"""What is kept is enough to go back to, and what belongs to another branch does not count."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.key import Key, newest_first
from holdfast.checkpoint.lineage import implied, left_by, lineages_of, superseded, valid
from holdfast.checkpoint.manifest import Lineage, ParentSnapshot
from holdfast.checkpoint.retention import LEAST, kept, surplus

KEYS = st.sets(st.builds(Key, st.integers(1, 4), st.integers(0, 10_000)), max_size=60)


@given(KEYS, st.integers(1, 6), st.data())
def test_the_newest_and_the_named_stay(keys: set[Key], newest: int, data: st.DataObject) -> None:
    named = data.draw(st.sets(st.sampled_from(sorted(keys)))) if keys else set()
    stay = kept(keys, newest=newest, firm=named)
    ordered = newest_first(keys)
    assert stay <= keys
    assert set(ordered[: max(newest, LEAST)]) <= stay
    assert named <= stay
    assert bool(stay) == bool(keys)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(1, 5))
def test_a_long_history_stays_short_and_has_something_of_every_age(
    gaps: list[int], newest: int
) -> None:
    """Pruned after every save, as in a job: then gaps in the history grow with its age only."""
    held: frozenset[Key] = frozenset()
    step = 0
    for gap in gaps:
        step += gap
        held = kept({*held, Key(1, step)}, newest=newest)
    ages = sorted(step - key.step for key in held)
    assert len(held) <= max(newest, LEAST) + step.bit_length() + 1
    first = gaps[0]
    assert not ages or ages[-1] >= (step - first) / 4 - max(gaps)
    reach = [8 * max(age, max(gaps)) for age in ages]
    assert all(later <= most for later, most in zip(ages[1:], reach, strict=False))


def lineage(attempt: int, parent: tuple[int, int] | None, fresh: str = "") -> Lineage:
    origin = None if parent is None else ParentSnapshot(*parent)
    return Lineage(attempt=attempt, parent=origin, fresh=fresh)


def keys(attempt: int, *steps: int) -> list[Key]:
    return [Key(attempt, step) for step in steps]


def test_what_a_later_attempt_left_behind_is_void() -> None:
    attempts = [lineage(1, None), lineage(2, (1, 480)), lineage(3, (2, 470))]
    assert valid(Key(1, 470), attempts)
    assert not valid(Key(1, 480), attempts)  # attempt 3 went on from before it
    assert not valid(Key(2, 490), attempts)
    assert valid(Key(3, 500), attempts)
    assert not valid(Key(1, 0), [*attempts, lineage(4, None)])  # began from nothing
    assert valid(Key(4, 0), [*attempts, lineage(4, None)])


@given(KEYS, st.lists(st.tuples(st.integers(2, 6), st.integers(-1, 10_000)), max_size=6))
def test_a_checkpoint_is_valid_as_long_as_nobody_went_on_from_before_it(
    keys: set[Key], begun: list[tuple[int, int]]
) -> None:
    attempts = [lineage(a, None if step < 0 else (a - 1, step)) for a, step in begun]
    for key in keys:
        undone = [step for attempt, step in begun if attempt > key.attempt and step < key.step]
        assert valid(key, attempts) == (not undone)


def test_only_the_newest_attempt_may_write() -> None:
    assert superseded(3, [1, 2, 3]) is None
    assert superseded(2, [1, 2, 3, 5]) == 5
    assert superseded(1, []) is None


def test_attempts_that_went_on_from_each_other_are_one_lineage() -> None:
    began = [lineage(1, None), lineage(2, (1, 480)), lineage(5, (4, 900)), lineage(7, None, "x")]
    assert lineages_of(began, []) == {1: 1, 2: 1, 5: 1, 7: 7}  # 3 and 4 have saved nothing here
    assert lineages_of([*began, lineage(9, (8, 30), "x")], [])[9] == 7
    without_7 = [*began[:3], lineage(9, (8, 30), "x")]  # it has saved nothing here
    assert lineages_of(without_7, [])[9] == 9, "what began anew is not put to what was there"


def test_an_attempt_whose_file_cannot_be_read_is_a_lineage_of_its_own() -> None:
    began = [lineage(1, None), lineage(3, (2, 20))]
    assert lineages_of(began, [1, 2]) == {1: 1, 2: 2, 3: 2}


def test_what_an_attempt_has_saved_says_before_what_it_began() -> None:
    """So a lineage file that cannot be read brings no more back than it has to."""
    began = [lineage(1, None)]
    held = keys(1, 500, 900) + keys(2, 510, 520)
    known = [*began, *implied(held, began)]
    assert [key for key in held if valid(key, known)] == [*keys(1, 500), *keys(2, 510, 520)]


def test_nothing_goes_because_a_newer_lineage_does_not_descend_from_it() -> None:
    """The model has changed, or its storage was away for a moment: all seven were removed."""
    seven = keys(1, 100, 200, 300, 400, 500, 600, 700)
    before = surplus(seven, [lineage(1, None)], newest=3, named=[])
    after = surplus(seven + keys(2, 10), [lineage(1, None), lineage(2, None)], newest=3, named=[])
    assert before == after
    assert len(seven) - len(after) >= 5


def test_a_branch_that_was_left_shrinks_to_its_newest_once_training_has_gone_past_it() -> None:
    began = [lineage(1, None), lineage(2, (1, 500))]
    branch = keys(1, 600, 700, 800, 900)
    some = surplus([*keys(1, 500), *branch, *keys(2, 510)], began, newest=3, named=[])
    assert some == {}
    later = [*keys(1, 500), *branch, *keys(2, 880, 890, 900)]
    gone = surplus(later, began, newest=3, named=[Key(1, 700)])
    assert set(gone) == {*keys(1, 600, 800)}, "the newest and the named stay"
    assert "attempt 2" in gone[Key(1, 600)]


def test_of_many_branches_a_few_are_remembered() -> None:
    """A job that is rolled back again and again does not fill its storage."""
    held, began = set(keys(1, 100)), [lineage(1, None)]
    for attempt in range(2, 200):
        held |= {Key(attempt - 1, 100 + attempt)}
        began.append(lineage(attempt, (1, 100)))
        held -= surplus(held, began, newest=3, named=[]).keys()
    assert Key(1, 100) in held
    assert {Key(198, 299), Key(197, 298)} <= held
    assert len(held) < 3 + 3 + 8


MOVES = st.sampled_from(("save", "save", "restart", "idle", "roll back", "fresh", "prune", "blind"))


@given(st.lists(st.tuples(MOVES, st.integers(0, 999)), max_size=80), st.integers(1, 4))
def test_the_newest_of_a_lineage_never_goes_whatever_happens(
    moves: list[tuple[str, int]], newest: int
) -> None:
    """Attempts save, restart, go back, begin anew, save nothing; files are unreadable at times."""
    place = Place(newest)
    for what, number in moves:
        place.do(what, number)


class Place:
    """A place and the attempts that save in it, with what the truth about them is."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.attempt, self.step, self.word = 1, 0, ""
        self.parent: Key | None = None
        self.stories = [{1}]  # attempts of each lineage
        self.held: set[Key] = set()
        self.files: dict[int, Lineage] = {}

    def do(self, what: str, number: int) -> None:
        """One move."""
        match what:
            case "save":
                self.step += 1 + number % 50
                self.held.add(Key(self.attempt, self.step))
                parent = None if self.parent is None else ParentSnapshot(*self.parent)
                known = Lineage(attempt=self.attempt, parent=parent, fresh=self.word)
                self.files.setdefault(self.attempt, known)
            case "restart" | "roll back" | "idle":
                self._go_on(what, number)
            case "fresh":
                self.word, self.step, self.parent = f"word {self.attempt}", 0, None
                self.attempt += 1
                self.stories.append({self.attempt})
            case "prune" | "blind":
                self._prune(number % (self.attempt + 1) if what == "blind" else None)

    def _prune(self, hidden: int | None) -> None:
        """Thin out; the lineage of one attempt may be hidden."""
        seen = [one for one in self.files.values() if one.attempt != hidden]
        best = {self.live(story)[0] for story in self.stories if self.live(story)}
        best |= self._left_last()
        gone = surplus(self.held, seen, newest=self.newest, named=[])
        assert gone.keys() <= self.held - best
        self.held -= gone.keys()
        assert hidden is not None or not surplus(self.held, seen, newest=self.newest, named=[])

    def _left_last(self) -> set[Key]:
        """The newest of what each lineage was taken back from last."""
        found = set()
        for story in self.stories:
            files = [one for one in self.files.values() if one.attempt in story]
            left = {k: by for k in self.held if k.attempt in story and (by := left_by(k, files))}
            last = [key for key, by in left.items() if by == max(left.values())]
            found |= set(newest_first(last)[:1])
        return found

    def _go_on(self, what: str, number: int) -> None:
        """From the newest checkpoint, an older one, or (idle) memory that nobody has saved."""
        live = self.live(self.stories[-1])
        if what == "idle":
            self.parent = Key(self.attempt, self.step)
        elif live:
            self.parent = live[number % len(live) if what == "roll back" else 0]
        else:
            return
        self.attempt, self.step = self.attempt + 1, self.parent.step
        self.stories[-1].add(self.attempt)

    def live(self, story: set[int]) -> list[Key]:
        """What counts of a lineage."""
        files = [one for one in self.files.values() if one.attempt in story]
        return newest_first(k for k in self.held if k.attempt in story and valid(k, files))
