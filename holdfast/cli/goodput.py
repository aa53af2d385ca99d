"""`holdfast goodput`: where every second of a job went."""

import time

from holdfast.cli import story
from holdfast.cli.locate import job_folder
from holdfast.cli.output import AsJson, JobName, json_result, result, table, talk


def goodput(name: JobName = None, as_json: AsJson = False) -> None:
    """Show the ledger of a job; its parts add up to the wall time."""
    from holdfast.drivers.records import goodput as read

    found = read(job_folder(name), time.time())
    if as_json:
        json_result(found)
        return
    result(f"{found.job}: ETTR {story.share(found.ettr)}, last hour {story.share(found.ettr_1h)}")
    result(table(("WHERE THE TIME WENT", "SECONDS", "SHARE"), story.bucket_rows(found)))
    if not found.observed:
        talk("The script reports no steps: all the time its workers ran counts as productive.")
