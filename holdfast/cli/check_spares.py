"""`holdfast check NAME`: have the spares of a running job check their machines once more."""

from typing import TYPE_CHECKING

from holdfast.cli import question
from holdfast.cli.cluster import Reach
from holdfast.cli.output import json_result, result, table, talk
from holdfast.cli.question import JobQuestion
from holdfast.errors import ExitStatus

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.drivers.kubernetes.api import Api
    from holdfast.links import LinkFigures, LinkReport
    from holdfast.messages import ChecksReply


def check_spares(name: str, reach: Reach | None, *, as_json: bool) -> None:
    """Ask, show, and exit with status 1 if a machine has failed. Raises `Error`."""
    import typer

    job, _, told = question.ask(QUESTION, _here, name, reach)
    failed = {node: why for node, why in told.found.items() if why}
    network = told.network
    cut = any(link.found is not None and link.found.trouble for link in network.links)
    ok = not (failed or network.slow or cut)
    if as_json:
        spares = [{"node": node, "ok": not why, "why": why} for node, why in told.found.items()]
        seen = {"job": job, "ok": ok, "spares": spares, "missing": told.missing}
        json_result({**seen, "network": network})
    elif told.found:
        rows = [(n, "failed" if why else "ok", why) for n, why in sorted(told.found.items())]
        result(table(("SPARE", "RESULT", "FOUND"), rows))
        _show_links(network)
    else:
        talk(f"{job} has no spare that can be checked")
    for node in told.missing:
        talk(f"{node} did not answer")
    if failed:
        talk("those that failed are replaced")
    if not ok:
        raise typer.Exit(ExitStatus.JOB_FAILED)


def _show_links(network: "LinkReport") -> None:
    if not network.links:
        talk("network: not measured; that takes two spares that are not training")
        return
    rows = [(one.node, one.other, *_figures(one.found)) for one in network.links]
    result("")
    result(table(("NODE", "NEXT NODE", "THERE", "BACK", "NOTE"), rows))
    if network.lines:
        result("")
    for line in network.lines:
        result(line)


def _figures(found: "LinkFigures | None") -> tuple[str, str, str]:
    from holdfast.links import rate

    if found is None:
        return "", "", "did not answer"
    if found.trouble:
        return "", "", found.trouble
    note = "same machine" if found.same_machine else ""
    return rate(found.there_bytes_per_s), rate(found.back_bytes_per_s), note


async def _there(cluster: "Api", job: str) -> "ChecksReply | None":
    from holdfast.drivers.kubernetes.published_stacks import ask_for_checks

    return await ask_for_checks(cluster, job)


def _remedy(job: str, words: str) -> str:
    if words:
        return question.what_happened(job, words)
    return f"holdfast check --name {job}   (this machine, and the disks of the job)"


def _here(folder: "Path") -> "ChecksReply":
    from holdfast.drivers import client

    return client.checks(folder)


QUESTION = JobQuestion(_there, "the controller asks the spares to check their machines", _remedy)
