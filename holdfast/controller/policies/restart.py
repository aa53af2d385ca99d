"""Whether and when to restart after a failure.

The cap counts restarts in a sliding window, so that a crash loop ends while a long job on many
nodes, which fails often and recovers well, does not. Back-off grows only over attempts that made no
progress, so that a healthy job restarts at once.

Errors of the environment (a storage that is away) come again until it is well, whoever asks. Then
the waits grow until the cap alone would last for longer than the window, and are longer still where
other restarts have used it up. What ends such a job is a whole window without any progress.
"""

from collections.abc import Sequence

from holdfast.controller.state import Failure

FIRST_BACKOFF_S = 0.5
LAST_BACKOFF_S = 30.0
DOUBLINGS_MAX = 16  # long past the last; after a thousand, two to that power is no float any more
RAN_S = 5.0  # an attempt that reports no steps but ran this long is worth no back-off
FRUITFUL_S = 60.0  # and after this long it counts as progress: the next error is a new one
FIRST_PATIENCE_S = 5.0
LAST_PATIENCE_S = 600.0
FIRST_NODE_S = 10.0
LAST_NODE_S = 300.0
SET_UP = ("import-error", "syntax-error")
SET_UP_S = 60.0  # after which every machine sees a new file (nfs(5), acdirmax): they will not pass
PATIENT_SHARE = 2.0  # times the window over the cap: with such waits 20 restarts last for longer


def backoff_s(fruitless: int) -> float:
    """Seconds to wait before the next attempt after `fruitless` attempts in a row without progress.

    None for the first two: a fault right after a fault is common, and waiting does not help it.
    """
    if fruitless < 2:
        return 0.0
    doublings = min(fruitless - 2, DOUBLINGS_MAX)
    return float(min(FIRST_BACKOFF_S * 2**doublings, LAST_BACKOFF_S))


def patience_s(fruitless: int, max_restarts: int, window_s: float) -> float:
    """Seconds to wait before the next attempt where the environment failed `fruitless` times.

    They double up to twice the window divided by the cap (5 s to 6 minutes for 20 in an hour), and
    never last for more than ten minutes.
    """
    if fruitless < 1:
        return 0.0
    last_s = max(LAST_BACKOFF_S, PATIENT_SHARE * window_s / max(1, max_restarts))
    last_s = min(last_s, LAST_PATIENCE_S)
    return float(min(FIRST_PATIENCE_S * 2 ** min(fruitless - 1, DOUBLINGS_MAX), last_s))


def next_node_s(failed: int) -> float:
    """Seconds to wait before another node is asked for, after so many new ones in a row that
    failed: none after the first, which chance may have struck, then from 10 s to five minutes,
    as a kubelet waits with a container that crashes."""
    if failed < 2:
        return 0.0
    doublings = min(failed - 2, DOUBLINGS_MAX)
    return float(min(FIRST_NODE_S * 2**doublings, LAST_NODE_S))


def recent(restarts: Sequence[float], now: float, window_s: float) -> list[float]:
    """The restarts that lie within the window."""
    return [at for at in restarts if at > now - window_s]


def same_failure(last: Failure | None, signature: str | None, step: int | None) -> bool:
    """Whether this user error is the last one again: same exception, same place, no progress."""
    return last is not None and last.signature == signature and last.step == step
