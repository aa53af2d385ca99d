"""`holdfast goodput`: where every second of a job went."""

from typing import TYPE_CHECKING

from holdfast.cli import story
from holdfast.cli.cluster import Context, Namespace, On, reached
from holdfast.cli.controller import Where
from holdfast.cli.output import AsJson, JobName, json_result, result, table, talk
from holdfast.cli.source import job_source, marked, tell

if TYPE_CHECKING:
    from holdfast.status import Goodput


def goodput(
    name: JobName = None,
    on: On = Where.LOCAL,
    context: Context = None,
    namespace: Namespace = None,
    as_json: AsJson = False,
) -> None:
    """Show the ledger of a job; its parts add up to the wall time."""
    with job_source(name, reached(on, context, namespace)) as source:
        found, troubles = source.goodput(), source.troubles()
        _show(marked(found, troubles), as_json)
        tell(troubles)


def _show(found: "Goodput", as_json: bool) -> None:
    if as_json:
        json_result(found)
        return
    result(f"{found.job}: ETTR {story.share(found.ettr)}, last hour {story.share(found.ettr_1h)}")
    result(table(("WHERE THE TIME WENT", "SECONDS", "SHARE"), story.bucket_rows(found)))
    if not found.observed:
        talk(
            "The script reports no steps, so all running time of its workers counts as productive."
        )
