"""What to do next: the one place where it is chosen.

`choose` weighs every step of the ladder against a situation: what happened and how sure that is,
the history of the job, what is there, and what things have cost so far. Each step is either not
enough or not possible, and says why, or it would do; of these the cheapest is taken, and among
equals the lower rung. `LADDER` is the table; a new step is a row of it.

Costs are expected seconds of the whole job from now on. A node out of N that does nothing for a
while costs an Nth of that. They rest on what the phases of this very job have taken
(`Prices`); the defaults hold until it was measured.

Practice that is published, and kept (ByteRobust, arXiv 2509.16293; FALCON): a lost device or disk
is left at once; an alert of the network is tolerated once and not twice within five minutes; no
machine is blamed for an error of the script, nor, unless the job asks for it, for being slow. One
on which alone such an error comes, again and again, is left on suspicion.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from holdfast.actions import Outcome
from holdfast.controller.policies import held_back, outages, poison, replace, restart, shrink, waits
from holdfast.controller.policies.situation import Rung, Situation, Weighed
from holdfast.counts import count
from holdfast.events import Severity

ALERTS = 2  # of one kind and device are a fault
ALERTS_S = 300.0  # within this time
SURE = 0.5  # a verdict below counts against nobody's machine
PEOPLE_S = 3600.0  # until somebody has seen that a job is over, and starts it again: assumed
RESIZED = "resized"  # more nodes are there than train
ALERT = "alert"  # something about a node that may pass
PUZZLING = 2  # attempts in a row without progress before machines are suspected that nobody blames
NAMED = 3  # of them, whose verdict names one node, before it is left on suspicion
NAMELESS = 3  # hangs or corruptions within the window that nobody is blamed for, likewise
UNNAMED = "no machine is identified as the cause"
SLOWED = "steps had become slower than usual, and no rank is slow"
REPLAYED_STEPS = 10


class Chosen(NamedTuple):
    """The step to take, and what it was chosen among."""

    rung: Rung
    reason: str
    outcome: Outcome | None  # of a job that ends with it
    weighed: tuple[Weighed, ...]


def choose(s: Situation) -> Chosen:
    """The cheapest step that would do; giving up where no other does."""
    weighed = tuple(row(s) for row in LADDER)
    would_do = [one for one in weighed if not one.against]
    if would_do:
        best = min(would_do, key=lambda one: one.cost_s)
        spared = Weighed(Rung.GIVE_UP, PEOPLE_S, f"{best.rung} is sufficient", "")
        return Chosen(best.rung, best.reason, None, (*weighed, spared))
    outcome, account = ending(s) or (Outcome.GAVE_UP, s.trouble.summary)
    last = Weighed(Rung.GIVE_UP, PEOPLE_S, "", account)
    return Chosen(last.rung, account, outcome, (*weighed, last))


def is_lasting(severity: Severity, alerts: int) -> bool:
    """Whether a condition of a node will not pass by itself."""
    return severity in (Severity.FATAL, Severity.LEAVES) or alerts >= ALERTS


# ── what the situation asks for ───────────────────────────────────────────────────────────────


def ending(s: Situation) -> tuple[Outcome, str] | None:
    """Why no further attempt is made, and whose fault that is; None if one may be."""
    trouble, history, means = s.trouble, s.history, s.means
    if asks_code(s):
        return None
    if trouble.stops:
        return Outcome.FAILED, f"{trouble.summary} recovery.on_nan is stop"
    if trouble.bad_step is not None and not asks_state(s) and not asks_repetition(s):
        known = history.restored is not None
        after = f", after step {history.restored} was restored" if known else ""
        again = f"at step {trouble.bad_step} again{after}"
        return Outcome.FAILED, f"numbers were not finite {again}{_skipped(s)}: {trouble.summary}"
    if trouble.final:
        return Outcome.FAILED, trouble.summary
    if history.again and not may_repeat(s) and not asks_state(s):
        tried = outages.through(s) if means.exact and means.max_restarts else ""
        same = f"the same error repeated at the same place without progress{tried}"
        return Outcome.FAILED, f"{same}: {trouble.summary}"
    if trouble.environment and outages.lasts_too_long(s):
        return Outcome.GAVE_UP, outages.kept_text(s)
    if not trouble.ended or outages.may_outwait(s) or (kept(s) and held_back.is_free(s)):
        return None
    if history.restarts >= means.max_restarts:
        account = f"{cap_text(means.max_restarts, means.window_s)}; last: {trouble.summary}"
    elif history.barren >= means.max_restarts and not trouble.environment:  # each of them was slow
        account = f"{outages.restarts_text(s)} in a row without progress; last: {trouble.summary}"
    else:
        return None
    return Outcome.FAILED if trouble.user_error else Outcome.GAVE_UP, account


def cap_text(most: int, window_s: float) -> str:
    """That no restart is left."""
    if most == 0:
        return "no restart is allowed"
    within = f"{count(most, 'restart')} in {window_s:g} s"
    return (
        f"{within} is allowed, and was used"
        if most == 1
        else f"{within} are allowed, all of them used"
    )


def _skipped(s: Situation) -> str:
    some = count(s.means.skipped, "batch was", "batches were")
    return f"; {some} skipped, all that recovery.skip_batches allows" if s.means.skipped else ""


def asks_code(s: Situation) -> str:
    """Why the previous version should train; else empty."""
    return f"{s.history.unproven}: {_said(s)}" if s.history.unproven else ""


def asks_state(s: Situation) -> str:
    """Why training cannot go on from the newest state, if there is an older one; else empty."""
    trouble, history, older = s.trouble, s.history, s.means.older
    if trouble.harmless:
        return ""
    if trouble.bad_step is not None and not history.bad_again:
        return f"only what was saved before step {trouble.bad_step} is restored"
    if trouble.bad_step is not None and s.means.skips:
        return f"batches that led to step {trouble.bad_step} are skipped, {s.means.skips} at most"
    if trouble.trains:
        return ""
    innocent = trouble.environment or trouble.cause in poison.INNOCENT
    last_chance = trouble.bad_step is not None or (
        not innocent and history.again and not may_repeat(s)
    )
    if older is None or (last_chance and history.spent):
        return ""
    if last_chance or (history.poisoned and not innocent):
        return f"step {history.restored} was restored and led to the same failure"
    return ""


def asks_node(s: Situation) -> str:
    """Why the node should be left that the trouble happened on; else empty."""
    return "" if s.means.held else _wants(s)


def _wants(s: Situation) -> str:
    trouble, means = s.trouble, s.means
    if not trouble.node or trouble.harmless or trouble.user_error or trouble.environment:
        return ""
    if trouble.cause == replace.STRAGGLER:
        return _said(s) if means.stragglers and means.spares else ""
    if not replace.blames_machine(trouble.cause) or trouble.confidence < SURE:
        return ""
    if trouble.trains and not (trouble.faulty and means.spares):
        return ""
    faults, limit = s.history.faults, means.replace_after
    worth = max(faults, limit) if trouble.faulty else faults
    if not replace.wanted(worth, limit, spares=means.spares, fruitless=s.history.fruitless):
        return ""
    often = f"{count(faults, 'device fault')} within {replace.WINDOW_S:g} s"
    return _said(s) if trouble.faulty else often


def asks_check(s: Situation) -> str:
    """Why all machines should be checked before anything else; else empty."""
    if s.history.checked or not s.means.checks:
        return ""
    if _puzzles(s):
        return f"{s.history.fruitless} attempts in a row made no progress; {UNNAMED}"
    return SLOWED if s.history.slowed and _may_be_a_machine(s) else ""


def asks_repetition(s: Situation) -> str:
    """Why groups of nodes should repeat a step; else empty. Not where a node is named: the next
    verdicts will tell whether it is that one."""
    trouble, means = s.trouble, s.means
    if trouble.node or not (means.repeats and means.spares) or means.vacant or asks_check(s):
        return ""
    if trouble.ended and trouble.bad_step is not None and not _asks_older(s):
        return (
            f"numbers were not finite at step {trouble.bad_step} again; a machine may be the cause"
        )
    if _puzzles(s):
        return f"{s.history.fruitless} attempts in a row made no progress; {UNNAMED}"
    often = s.history.nameless
    if often < NAMELESS or not trouble.ended or trouble.cause not in replace.IN_GROUPS:
        return ""
    return f"{trouble.cause} {often} times within {means.window_s:g} s; {UNNAMED}"


def asks_isolation(s: Situation) -> str:
    """Why a node should be left that nothing but verdicts speaks against; else empty."""
    if s.means.held:
        return ""
    if alone := _asks_another(s):
        return alone
    trouble, named = s.trouble, s.history.named
    known = trouble.cause in replace.NAMING and trouble.node and trouble.confidence >= SURE
    if not _puzzles(s) or asks_check(s) or not known or named < NAMED or not s.means.spares:
        return ""
    return f"{named} attempts in a row failed because of {s.trouble.node}, without progress"


def kept(s: Situation) -> Rung | None:
    """The step by which a node would be left for a spare, if a limit of removals did not keep it;
    None unless that alone does."""
    if not (s.means.held and s.means.spares and s.trouble.ended) or s.trouble.trains:
        return None
    if _wants(s):
        return Rung.REPLACE
    free = msgspec.structs.replace(s, means=msgspec.structs.replace(s.means, held=""))
    return Rung.ISOLATE if asks_isolation(free) else None


def _asks_another(s: Situation) -> str:
    """Why an error of the script may not come on another node; empty if none is to be left."""
    recurs, means = s.history.recurs, s.means
    able = s.trouble.ended and means.spares and means.replace_after and not means.vacant
    if recurs is None or recurs.whose != "machine" or recurs.confidence < SURE or not able:
        return ""
    return recurs.text


def _whose(s: Situation) -> str:
    return s.history.recurs.whose if s.history.recurs is not None else ""


def asks_growth(s: Situation) -> str:
    """Why more nodes should train; else empty."""
    if s.trouble.cause != RESIZED or not s.trouble.trains or waits.more(s) <= 0:
        return ""
    since_s = s.prices.since_change_s
    if since_s is not None and since_s < waits.grow_wait_s(s) - replace.ROUNDING_S:
        return ""
    return f"{count(waits.more(s), 'more is', 'more are')} ready"


def may_repeat(s: Situation) -> bool:
    """Who asks for a number of restarts gets it for errors of the script too; but not for a typo
    that keeps it from its first step, once whatever a file system may still hide has come."""
    typo = s.trouble.cause in restart.SET_UP and (s.history.stuck_s or 0.0) >= restart.SET_UP_S
    return s.means.exact and s.history.barren < s.means.max_restarts and not typo


def delay_s(s: Situation) -> float:
    """How long to wait before the next attempt."""
    if kept(s):
        return held_back.delay_s(s)
    fruitless = s.history.fruitless
    return outages.delay_s(s) if s.trouble.environment else restart.backoff_s(fruitless)


def _puzzles(s: Situation) -> bool:
    """Whether the same may come again for ever, because of a machine that nobody blames."""
    trouble = s.trouble
    if _whose(s) == "code":
        return False
    doubt = trouble.ended and trouble.cause in replace.DOUBTFUL and not s.means.vacant
    return doubt and s.history.fruitless >= PUZZLING and not (_asks_older(s) or _wants(s))


def _may_be_a_machine(s: Situation) -> bool:
    """Whether what has failed now leaves open what is wrong with any of them."""
    trouble = s.trouble
    told = trouble.user_error or trouble.environment or not trouble.ended or s.means.vacant
    return not (told or _asks_older(s) or _wants(s))


def _asks_older(s: Situation) -> str:
    return asks_code(s) or asks_state(s)


def _said(s: Situation) -> str:
    return s.trouble.summary or s.trouble.cause


# ── the rows ──────────────────────────────────────────────────────────────────────────────────


def _first(*objections: str) -> str:
    return next(filter(None, objections), "")


def _over(s: Situation) -> str:
    """What no further attempt could change."""
    end = ending(s)
    return (end[1] or "nothing would be different") if end is not None else ""


def _sound(s: Situation) -> bool:
    """Whether what is trained meanwhile counts."""
    trouble = s.trouble
    doubtful = trouble.faulty or trouble.cause in (replace.STRAGGLER, RESIZED, ALERT)
    sound = doubtful and trouble.bad_step is None
    return trouble.trains and (sound or bool(trouble.harmless))


def _goes_on(s: Situation) -> str:
    return "training continues meanwhile" if _sound(s) else ""


def _again_s(s: Situation) -> float:
    """Until the job trains where it was, once nothing of the attempt runs."""
    stop_s = s.prices.stop_s if s.trouble.trains else 0.0
    return stop_s + s.prices.start_s + s.prices.redone * s.prices.step_s


def _carry_on(s: Situation) -> Weighed:
    against = _first(
        "" if s.trouble.trains else "the attempt has ended",
        "" if _sound(s) else "its results from here on would be discarded",
        asks_node(s),
        asks_growth(s),
    )
    cost_s = _again_s(s) if s.trouble.faulty else 0.0  # it will fail one day
    return Weighed(Rung.CARRY_ON, cost_s, against, s.trouble.harmless or _tolerated(s))


def _tolerated(s: Situation) -> str:
    if s.trouble.faulty or _wants(s):
        return _suspect(s)
    if s.trouble.cause == replace.STRAGGLER:
        return "slow nodes are replaced only with recovery.stragglers: replace and a spare"
    if s.trouble.cause == ALERT:
        return f"one alert is tolerated; {ALERTS} within {ALERTS_S:g} s are a fault"
    return "the last resize has not paid for itself yet"


def _restart(s: Situation) -> Weighed:
    against = _first(
        *(_goes_on(s), _over(s), _asks_older(s), asks_node(s)),
        *(asks_check(s), asks_repetition(s), asks_isolation(s), _nobody(s)),
    )
    wait_s = delay_s(s)
    return Weighed(Rung.RESTART, wait_s + _again_s(s), against, _hope(s, wait_s))


def _nobody(s: Situation) -> str:
    """Why the same nodes cannot just start again."""
    if s.means.vacant:
        return f"{count(s.means.vacant, 'node rank')} without a node"
    return held_back.hopeless(s) if kept(s) else ""


def _hope(s: Situation, wait_s: float) -> str:
    """Why the same once more may be enough."""
    trouble, history = s.trouble, s.history
    wait = f"; in {wait_s:.3g} s" if wait_s else ""
    if kept(s):
        return f"{held_back.text(s)}{wait}"
    if history.again:
        times = f"restart {history.barren + 1} of {s.means.max_restarts} for it"
        return f"the same error again, without progress: {times}{wait}"
    if trouble.environment:
        return f"the failed dependency may have recovered{wait}"
    if history.recurs is not None:
        return f"{history.recurs.text}{wait}"
    if trouble.user_error:
        return f"a script error gets a second attempt{wait}"
    if replace.blames_machine(trouble.cause) and trouble.node:
        return f"{_forgiven(s)}{wait}"
    return f"no evidence against the nodes or the state{wait}"


def _forgiven(s: Situation) -> str:
    faults, limit = s.history.faults, s.means.replace_after
    if s.trouble.confidence < SURE:
        return "the verdict is too uncertain to blame a machine"
    if not limit:
        return "nodes of this job are not replaced for device faults"
    if faults < limit and not s.trouble.faulty:
        day = f"within {replace.WINDOW_S:g} s"
        return f"fault {faults} of {s.trouble.node} {day}; it is replaced after {limit}"
    return _suspect(s)


def _suspect(s: Situation) -> str:
    held = s.means.held if _wants(s) else ""
    return held or "no healthy spare is available; keeping the suspect node"


def _replace(s: Situation) -> Weighed:
    means, leave = s.means, asks_node(s)
    fills = not s.trouble.trains and means.vacant > 0 and not means.missing
    over = "" if s.trouble.trains else _over(s)
    against = _first(
        *(over, _asks_older(s), asks_check(s), asks_repetition(s), asks_isolation(s)),
        "" if leave or fills or _suspects(s) else _stays(s),
    )
    there = means.spares > 0 or (fills and not means.cold)
    arrival_s = s.prices.arrival_s / (max(1, means.size) if there else 1)  # of one node, or of all
    move_s = max(0.0, s.prices.move_s - s.prices.start_s)
    cost_s = delay_s(s) + _again_s(s) + move_s + arrival_s
    wait = count(means.waiting, "node waits", "nodes wait")
    reason = leave or f"{wait} for a rank{_cold(s)}"
    return Weighed(Rung.REPLACE, cost_s, against, reason)


def _cold(s: Situation) -> str:
    """That not all of those who wait are warm."""
    some = count(s.means.cold, "node")
    return f"; the workers of {some} are not ready yet" if s.means.cold else ""


def _suspects(s: Situation) -> bool:
    """Whether to leave the node would help if it is to blame, though it may not be."""
    trouble = s.trouble
    told = not (trouble.user_error or trouble.environment or trouble.trains or s.means.held)
    blamed = told and trouble.confidence >= SURE and replace.blames_machine(trouble.cause)
    return blamed and bool(trouble.node) and s.means.spares > 0 and s.means.replace_after > 0


def _stays(s: Situation) -> str:
    """Why no node is left."""
    trouble = s.trouble
    if s.means.missing:
        return "no node is available for the rank"
    if trouble.user_error:
        return "machines are not replaced for script errors"
    if trouble.cause == replace.STRAGGLER or (trouble.faulty and not s.means.spares):
        return _tolerated(s)
    if replace.blames_machine(trouble.cause) and trouble.node:
        return _forgiven(s)
    return "no evidence against a machine"


def _roll_back(s: Situation) -> Weighed:
    why = asks_state(s)
    older = s.means.older
    known = "" if why or older is not None else "no older checkpoint is known"
    doubts = (asks_node(s), asks_check(s), asks_repetition(s), asks_isolation(s), _nobody(s))
    others = ("",) if why else doubts
    against = _first(_goes_on(s), _over(s), asks_code(s), known, *others)
    reason = why or f"step {older} is also committed"
    cost_s = delay_s(s) + _again_s(s) + s.prices.behind * s.prices.step_s
    return Weighed(Rung.ROLL_BACK, cost_s, against, reason)


def _roll_code(s: Situation) -> Weighed:
    why = asks_code(s)
    against = _first(_goes_on(s), "" if why else "no version is on trial")
    return Weighed(Rung.ROLL_CODE, _again_s(s), against, why)


def _check(s: Situation) -> Weighed:
    why = asks_check(s)
    against = _first(_goes_on(s), _over(s), _asks_older(s), "" if why else _unchecked(s))
    return Weighed(Rung.CHECK, s.prices.check_s + delay_s(s) + _again_s(s), against, why)


def _unchecked(s: Situation) -> str:
    if not _puzzles(s):
        return _clear(s)
    return (
        "already checked since the last progress" if s.history.checked else "recovery.check is off"
    )


def _clear(s: Situation) -> str:
    """Why no machine is suspected that nobody blames."""
    if s.trouble.cause in replace.DOUBTFUL and not asks_node(s):
        return f"machines are suspected after {PUZZLING} attempts in a row without progress"
    return "no machine is suspected"


def _replay(s: Situation) -> Weighed:
    """Two phases, each of which starts all nodes."""
    prices, why = s.prices, asks_repetition(s)
    against = _first(
        *(_goes_on(s), _over(s), _asks_older(s), asks_check(s), asks_isolation(s)),
        "" if why else _unrepeated(s),
    )
    cost_s = 2 * (prices.start_s + REPLAYED_STEPS * prices.step_s) + _again_s(s)
    return Weighed(Rung.REPLAY, cost_s, against, why)


def _unrepeated(s: Situation) -> str:
    if not _puzzles(s) and s.history.nameless < NAMELESS:
        return _clear(s)
    if s.trouble.node:
        return f"{s.trouble.node} is suspected; waiting for further verdicts"
    if not s.means.spares:
        return "no healthy spare is available"
    return "recovery.group_tests is off, groups were tested recently, or no step can be repeated"


def _isolate(s: Situation) -> Weighed:
    why, replaced = asks_isolation(s), _replace(s)
    against = _first(_goes_on(s), _over(s), _asks_older(s), asks_check(s), "" if why else _kept(s))
    return Weighed(Rung.ISOLATE, replaced.cost_s, against, why)


def _kept(s: Situation) -> str:
    if s.means.held and s.means.spares and (s.history.named >= NAMED or _whose(s) == "machine"):
        return s.means.held
    if _whose(s) == "machine":
        held = "a suspect node stays while the attempt runs or a rank has no node"
        return "no healthy spare is available" if not s.means.spares else held
    if not _puzzles(s):
        return _clear(s)
    if s.history.named < NAMED:
        return f"no node was named by {NAMED} verdicts in a row"
    return "no healthy spare is available" if not s.means.spares else "the verdict is too uncertain"


def _stays_short(s: Situation) -> str:
    """Why the number of nodes is not the question now."""
    nobody = "" if s.means.missing else "no node is missing"
    runs = "the attempt still runs" if s.trouble.trains else ""
    return _first(runs, _over(s), _asks_older(s), asks_node(s), nobody)


def _wait(s: Situation) -> Weighed:
    prices = s.prices
    if kept(s) and not s.means.missing:
        progress = "" if _nobody(s) else f"attempts with {s.trouble.node} make progress"
        return held_back.weighed(s, _again_s(s), _first(_over(s), _asks_older(s), progress))
    none = "no more nodes are expected" if s.trouble.alone else ""
    overdue = _shrinkable(s) and prices.waited_s >= waits.patience_s(s) - replace.ROUNDING_S
    even = f"continuing with {count(s.means.left, 'node')} costs less than waiting"
    against = _first(_stays_short(s), none, even if overdue else "")
    cost_s = _expected_s(s) + _again_s(s)
    known = f"nodes are expected in {_expected_s(s):.3g} s"
    reason = known if prices.expected_s is not None else "when nodes will arrive is unknown"
    if _shrinkable(s):
        reason += f"; worth waiting up to {waits.patience_s(s):.3g} s"
    return Weighed(Rung.WAIT, cost_s, against, reason)


def _expected_s(s: Situation) -> float:
    """How long nodes will stay away: as is known, else as long again as so far."""
    prices = s.prices
    known = prices.expected_s
    return max(prices.waited_s, prices.change_s) if known is None else known


def _shrinkable(s: Situation) -> bool:
    return s.means.fewest <= s.means.left < s.means.size


def _shrink(s: Situation) -> Weighed:
    means, change_s = s.means, s.prices.change_s
    few = f"{count(means.left, 'node')} left, at least {means.fewest} needed"
    against = _first(_stays_short(s), "" if _shrinkable(s) else few)
    short_s = (_expected_s(s) - change_s) * means.missing / max(1, means.size)
    cost_s = 2 * change_s + short_s + _again_s(s)
    told = f"{means.missing} of {count(means.size, 'node')} missing, {_arrivals(s)}"
    even_s = shrink.break_even_s(means.size, means.missing, change_s)
    pays = f"a resize costs {change_s:.3g} s: worth waiting up to {even_s:.3g} s"
    return Weighed(Rung.SHRINK, cost_s, against, f"{told}; {pays}")


def _arrivals(s: Situation) -> str:
    if s.trouble.alone:
        return "no more nodes are expected"
    return f"none came within {s.prices.waited_s:.3g} s"


def _grow(s: Situation) -> Weighed:
    why = asks_growth(s)
    against = _first("" if s.trouble.trains else "no attempt runs", "" if why else _as_many(s))
    return Weighed(Rung.GROW, s.prices.change_s, against, why)


def _as_many(s: Situation) -> str:
    if s.trouble.cause == RESIZED and waits.more(s) > 0:
        return f"at the earliest {waits.grow_wait_s(s):.3g} s after the last resize"
    return "no additional node is available"


LADDER: tuple[Callable[[Situation], Weighed], ...] = (
    _carry_on,
    _restart,
    _replace,
    _roll_code,
    _roll_back,
    _check,
    _replay,
    _isolate,
    _wait,
    _shrink,
    _grow,
)
"""The table, cheapest steps first as a rule. What ends the job comes after all of these."""
