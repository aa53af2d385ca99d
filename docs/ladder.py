"""The page on the ladder: its steps, and what it answers in situations that people meet.

The answers are asked of the table itself (`controller/policies/ladder.py`), so they are what a job
of 16 nodes would do that nothing was measured of yet.
"""

from docs.markdown import table
from holdfast.controller.policies.ladder import PEOPLE_S, choose
from holdfast.controller.policies.situation import (
    MEANINGS,
    History,
    Means,
    Prices,
    Rung,
    Situation,
    Trouble,
)

SPARE = Means(size=16, fewest=16, target=16, spares=1, waiting=1)
NONE = Means(size=16, fewest=16, target=16)
SHORT = Means(size=16, fewest=8, target=16, vacant=1)
CHECKED = Means(size=16, fewest=16, target=16, spares=1, waiting=1, checks=True)
OLDER = Means(size=16, fewest=16, target=16, spares=1, waiting=1, older=400)
WHAT = "the summary of the incident"


def _failed(cause: str, *, node: str = "", faulty: bool = False) -> Trouble:
    return Trouble(cause=cause, summary=WHAT, ended=True, node=node, faulty=faulty)


SCRIPT = Trouble(cause="worker-exception", summary=WHAT, ended=True, user_error=True)
STORAGE = Trouble(cause="environment", summary=WHAT, ended=True, environment=True)
SLOW = Trouble(cause="straggler", summary=WHAT, node="node-3", trains=True)
ALERT = Trouble(cause="alert", summary=WHAT, node="node-3", trains=True)
SICK = Trouble(cause="hardware-fault", summary=WHAT, node="node-3", faulty=True, trains=True)
NAN = Trouble(cause="nan", summary=WHAT, ended=True, bad_step=500)

SITUATIONS: dict[str, Situation] = {
    "a worker is killed": Situation(trouble=_failed("worker-killed"), means=SPARE),
    "first device error of a node": Situation(
        trouble=_failed("device-error", node="node-3"), history=History(faults=1), means=SPARE
    ),
    "its second within a day": Situation(
        trouble=_failed("device-error", node="node-3"), history=History(faults=2), means=SPARE
    ),
    "its second, and no spare": Situation(
        trouble=_failed("device-error", node="node-3"), history=History(faults=2), means=NONE
    ),
    "a GPU or disk is lost": Situation(trouble=SICK, means=SPARE),
    "a GPU or disk is lost, and no spare": Situation(trouble=SICK, means=NONE),
    "the worker says that its GPU is lost": Situation(
        trouble=_failed("device-lost", node="node-3", faulty=True), means=SPARE
    ),
    "workers abort, twice without progress": Situation(
        trouble=_failed("worker-aborted"), history=History(fruitless=2), means=CHECKED
    ),
    "again, after all machines passed their checks": Situation(
        trouble=_failed("worker-aborted"),
        history=History(fruitless=3, checked=True),
        means=CHECKED,
    ),
    "one node hangs, three times without progress": Situation(
        trouble=_failed("hang", node="node-3"),
        history=History(fruitless=3, named=3, checked=True),
        means=CHECKED,
    ),
    "a version on trial fails": Situation(
        trouble=SCRIPT,
        history=History(unproven="version 2 failed within its first 100 steps"),
        means=SPARE,
    ),
    "first alert of a network link": Situation(trouble=ALERT, means=SPARE),
    "a rank is slow": Situation(trouble=SLOW, means=SPARE),
    "a node is lost": Situation(
        trouble=_failed("node-lost"),
        means=Means(size=16, fewest=16, target=16, vacant=1, spares=1, waiting=1),
    ),
    "a node is lost, and no spare": Situation(trouble=_failed("node-lost"), means=SHORT),
    "no node came for longer than the break-even": Situation(
        trouble=_failed("node-lost"), means=SHORT, prices=Prices(waited_s=65.0)
    ),
    "the script raises an exception": Situation(trouble=SCRIPT, means=SPARE),
    "the same one again, without progress": Situation(
        trouble=SCRIPT, history=History(again=True, restored=480), means=SPARE
    ),
    "the same, with an older checkpoint": Situation(
        trouble=SCRIPT,
        history=History(again=True, restored=480),
        means=OLDER,
        prices=Prices(behind=80),
    ),
    "storage times out twice at the same line": Situation(
        trouble=STORAGE, history=History(fruitless=2), means=SPARE
    ),
    "storage fails for a whole hour": Situation(
        trouble=STORAGE, history=History(fruitless=14, barren=14, trouble_s=3600.0), means=SPARE
    ),
    "the loss is NaN": Situation(trouble=NAN, means=OLDER, prices=Prices(behind=1)),
    "NaN again at the same step": Situation(
        trouble=NAN,
        history=History(bad_again=True, restored=499),
        means=OLDER,
        prices=Prices(behind=99),
    ),
    "20 restarts within an hour": Situation(
        trouble=_failed("worker-killed"), history=History(restarts=20), means=SPARE
    ),
}


def ladder() -> str:
    """The steps, the answers, and the picture of both."""
    steps = table(("step", "what happens"), [(f"`{rung}`", MEANINGS[rung]) for rung in Rung])
    answers = table(("situation", "step", "expected", "because"), map(_answer, SITUATIONS))
    prices = table(("until it was measured", "seconds"), _assumed())
    return f"""# The ladder

What Holdfast does next, as `controller/policies/ladder.py` answers; how it is chosen is
in [concepts/recovery.md](../concepts/recovery.md). `holdfast why NAME N` shows the choice of an
incident with every step that was weighed.

{steps}

## Answers

Of a job of 16 nodes without measurements of its own. "Expected" are seconds of the whole job.

{answers}

```mermaid
{_picture()}
```

## What is assumed

{prices}
"""


def _answer(situation: str) -> tuple[str, str, str, str]:
    chosen = choose(SITUATIONS[situation])
    (cost_s,) = [one.cost_s for one in chosen.weighed if one.rung is chosen.rung]
    return situation, f"`{chosen.rung}`", f"{cost_s:.4g} s", chosen.reason


def _picture() -> str:
    """Situations, and the step that follows each, as Mermaid."""
    lines = ["flowchart LR"]
    for number, (situation, asked) in enumerate(SITUATIONS.items()):
        rung = choose(asked).rung
        lines.append(f'    s{number}["{situation}"] --> {rung.name.lower()}(["{rung}"])')
    return "\n".join(lines)


def _assumed() -> list[tuple[str, str]]:
    prices = Prices()
    return [
        ("to start again in place, until it trains", f"{prices.start_s:g}"),
        ("to start with another node", f"{prices.move_s:g}"),
        ("until a new node is there", f"{prices.arrival_s:g}"),
        ("a resize", f"{prices.change_s:g}"),
        ("all machines check themselves", f"{prices.check_s:g}"),
        ("a step", f"{prices.step_s:g}"),
        ("until people start a job again that has given up (never measured)", f"{PEOPLE_S:g}"),
    ]
