"""What follows where a node is to be left, a spare waits, and only a limit of removals keeps it.

The limits (`replace.removals_most`, `most_of_rack`) protect a cluster from one job. They are no
reason to end a job that a spare would help: the first restart with such a node counts, as its
replacement would have, and further ones do not count against the cap.

With the node the job trains on for as long as attempts make progress. Where they make none it
waits, and tries once in a while: what was wrong may have been mended. Waits grow with each such
restart within the hour, as for new nodes that fail, so about twenty fit in, and none lasts for
longer than the limit does. A crash loop ends all the same: each node that is left then counts.
"""

from holdfast.controller.policies import restart
from holdfast.controller.policies.situation import Rung, Situation, Weighed

FRUITLESS = 2  # attempts in a row without progress, after which a wait costs less than the next


def delay_s(s: Situation) -> float:
    """How long to wait before the next attempt with the node, or without it."""
    wait_s = max(restart.backoff_s(s.history.fruitless), restart.next_node_s(s.history.kept))
    return min(wait_s, s.means.held_s)


def is_free(s: Situation) -> bool:
    """Whether a further restart does not count."""
    return s.history.stays


def hopeless(s: Situation) -> str:
    """Why the next attempt would fail as well; empty if it may come further."""
    count = s.history.fruitless
    if count < FRUITLESS:
        return ""
    return f"{count} attempts in a row made no progress; {s.trouble.node} would fail the next one"


def text(s: Situation) -> str:
    """What keeps the node and for how long, and what that means for the cap."""
    until = f"{s.trouble.node} may be replaced in {s.means.held_s:.3g} s"
    free = "further restarts with it do not count against recovery.max_restarts"
    return f"{s.means.held}: {until}; {free}"


def weighed(s: Situation, again_s: float, against: str) -> Weighed:
    """To wait for the node that takes its place."""
    wait_s = delay_s(s)
    soon = wait_s < s.means.held_s
    then = f"; next attempt with it in {wait_s:.3g} s" if soon else ""
    return Weighed(Rung.WAIT, s.means.held_s + again_s, against, f"{text(s)}{then}")
