"""What the page asks for, as JSON in the shapes of `holdfast.status`. Only ever GET.

Answers are worked out in threads, because they read files. A job that cannot be read has its error
in the answer, in the three parts that the command line prints.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import __version__
from holdfast.dashboard.fleet import Fleet, Glances
from holdfast.dashboard.job_record import JobLook, JobRecord
from holdfast.dashboard.ribbon import ribbon
from holdfast.drivers.explained import advice, known_problem, log_tail, problem_fields
from holdfast.errors import Error
from holdfast.files import unusable
from holdfast.goodput import to_goodput
from holdfast.status import Incident

JSON = "application/json"
NOT_FOUND = ("job-not-found", "incident-not-found", "usage")
BRIEF = (
    "id", "cause", "summary", "node", "nodes", "rank", "attempt", "step", "started_at",
    "detected_at", "ended_at", "ahead_s", "lost_s", "steps_lost", "bill", "confidence",
)  # fmt: skip


class Pages:
    """The answers about one fleet."""

    def __init__(self, fleet: Fleet, glances: Glances) -> None:
        self._fleet, self._glances = fleet, glances

    def routes(self) -> Sequence[Route]:
        """Where they are asked for."""
        one = "/api/jobs/{name}"
        answers: Mapping[str, Callable[[Request], Any]] = {
            "/api/fleet": self._jobs,
            one: self._job,
            f"{one}/ribbon": self._ribbon,
            f"{one}/figures/{{path:path}}": self._figures,
            f"{one}/incidents/{{number:int}}": self._incident,
            f"{one}/log/{{rank:int}}": self._log,
        }
        return [Route(path, _in_a_thread(answer)) for path, answer in answers.items()]

    def _record(self, request: Request) -> JobRecord:
        return self._fleet.record(request.path_params["name"])

    def _jobs(self, _: Request) -> Any:
        rows = fleet_rows(self._glances)
        return {"title": self._fleet.title, "version": __version__, "jobs": rows}

    def _job(self, request: Request) -> Any:
        look = self._record(request).look()
        status = look.status
        return {
            **row(look),
            "status": status,
            "goodput": to_goodput(status.job, look.ledger),
            "from_ms": look.ledger.start_ms,
            "to_ms": look.ledger.end_ms,
            "incidents": [brief(one) for one in look.incidents],
            "marks": [one._asdict() for one in look.marks],
            "dimensions": None if look.dimensions is None else look.dimensions._asdict(),
            "workers_per_node": look.workers_per_node,
            "racks": look.racks or None,
            "cost_per_hour": look.cost_per_hour,
            "trouble": look.trouble,
        }

    def _ribbon(self, request: Request) -> Any:
        asked = request.query_params
        ledger = self._record(request).look().ledger
        begin = _whole(asked.get("from"), ledger.start_ms)
        return ribbon(ledger, begin, _whole(asked.get("to"), ledger.end_ms))

    def _figures(self, request: Request) -> Response:
        found = self._record(request).figures(request.path_params["path"])
        if found is None:
            raise _wrong("there are no such figures", "the address is invalid")
        return Response(found[0], media_type=found[1])

    def _incident(self, request: Request) -> Any:
        record, number = self._record(request), request.path_params["number"]
        incident = next((one for one in record.look().incidents if one.id == number), None)
        if incident is None:
            raise Error(
                "incident-not-found",
                f"job {record.name} has no incident {number}",
                why="it has fewer",
                help=f"holdfast incidents {record.name}",
            )
        tail = log_tail(record.folder, incident)
        known = known_problem(incident, record.folder)
        return {
            "incident": incident,
            "log_tail": tail,
            "known_problem": None if known is None else problem_fields(known),
            "advice": advice(incident),
        }

    def _log(self, request: Request) -> Any:
        asked = request.query_params.get("attempt")
        attempt = None if asked is None else _whole(asked, 0)
        return self._record(request).output(request.path_params["rank"], attempt)._asdict()


def fleet_rows(glances: Glances) -> list[dict[str, Any]]:
    """All jobs in short; of one that is not read yet only the name."""
    found: list[dict[str, Any]] = []
    for name, seen in glances.all():
        match seen:
            case None:
                found.append({"job": name})
            case BaseException():
                found.append({"job": name, "error": fields(seen)})
            case _:
                found.append(seen)
    return found


def row(look: JobLook) -> dict[str, Any]:
    """A job in a line of the fleet."""
    status, ledger = look.status, look.ledger
    training = sum(node.rank is not None for node in status.nodes)
    return {
        "job": status.job,
        "phase": status.phase,
        "outcome": status.outcome,
        "controller": status.controller,
        "attempt": status.attempt,
        "step": status.step,
        "loss": look.loss,
        "ettr": ledger.ettr,
        "ettr_1h": ledger.ettr_1h,
        "nodes": status.training_count if status.training_count is not None else training,
        "spares": sum(node.state == "spare" for node in status.nodes),
        "incidents_count": status.incidents_count,
        "restarts_count": status.restarts_count,
        "started_at": status.started_at,
        "wall_s": ledger.wall_s,
        "cost": look.cost,
        "waiting_for": status.waiting_for,
        "why": status.why,
    }


def brief(incident: Incident) -> dict[str, Any]:
    """An incident without its evidence."""
    return {name: getattr(incident, name) for name in BRIEF}


def fields(error: BaseException) -> dict[str, str]:
    """An error as it is shown. One job that cannot be read hinders no other."""
    match error:
        case Error():
            told = error
        case OSError():
            told = unusable(error)
        case _:
            why = f"{type(error).__name__}: {error}"
            told = unusable(OSError(0, why), "it cannot be read by this version of Holdfast")
    return {"slug": told.slug, "what": told.what, "why": told.why, "help": told.help}


def _in_a_thread(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        try:
            found = await run_in_threadpool(answer, request)
        except Exception as error:
            status = 404 if isinstance(error, Error) and error.slug in NOT_FOUND else 500
            return Response(msgspec.json.encode({"error": fields(error)}), status, media_type=JSON)
        if isinstance(found, Response):
            return found
        return Response(msgspec.json.encode(found), media_type=JSON)

    return endpoint


def _whole(text: str | None, otherwise: int) -> int:
    if text is None:
        return otherwise
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise _wrong(f"{text[:40]!r} is not a number", "a whole number has digits only")
    return int(text)


def _wrong(what: str, why: str) -> Error:
    return Error("usage", what, why=why, help="reload the page")
