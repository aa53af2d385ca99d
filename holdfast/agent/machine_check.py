"""Whether this node's machine may train: the quick checks, before the controller may count on it.

They run in processes of their own (`python -m holdfast.checks`), beside the forkserver that loads.
"""

import sys
from collections.abc import Iterable

import msgspec

from holdfast.agent.program_output import output_of
from holdfast.agent.storage.protocol import DurablePlace
from holdfast.checks.compare import CheckReport
from holdfast.checks.plan import nearest_folder

LONGEST_S = 300.0  # all of them together; each has its own deadline


async def unfit(node: str, places: Iterable[DurablePlace]) -> str:
    """Why this machine may not train; empty if it may."""
    folders = [nearest_folder(place.where) for place in places if "://" not in place.where]
    command = [sys.executable, "-m", "holdfast.checks", *dict.fromkeys(folders)]
    try:
        return _failures(await output_of(command, node, LONGEST_S))
    except TimeoutError:
        return f"its checks timed out after {LONGEST_S:g} s"


def _failures(said: bytes) -> str:
    try:
        report = msgspec.json.decode(said, type=CheckReport)
    except msgspec.MsgspecError:
        return "its checks ended without a result (see agent.log of the node)"
    bad = [one for one in report.checks if one.state == "failed"]
    return "; ".join(f"{one.name}: {one.found}" for one in bad)
