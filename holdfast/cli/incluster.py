"""`holdfast controller --on kubernetes`: what the controller pod of a job runs."""

import asyncio
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.actions import Outcome
    from holdfast.drivers.kubernetes.cluster import Cluster
    from holdfast.drivers.kubernetes.incluster import Place


def control() -> None:
    """Be the controller of the job whose pod this is; its exit status says how the job ended."""
    try:
        outcome = asyncio.run(_control())
    except asyncio.CancelledError:
        return
    if outcome is not None:
        print(f"holdfast: the job has ended: {outcome}", file=sys.stderr, flush=True)


async def _control() -> "Outcome | None":
    from holdfast.drivers.kubernetes.api import Api
    from holdfast.drivers.kubernetes.config import connect
    from holdfast.drivers.kubernetes.incluster import place_of

    connection = connect()
    namespace = os.environ.get("HOLDFAST_NAMESPACE") or connection.namespace
    place = place_of(os.environ, namespace)
    cluster = Api(connection.client, namespace)
    try:
        return await controlled(cluster, place)
    finally:
        await cluster.close()


async def controlled(cluster: "Cluster", place: "Place") -> "Outcome | None":
    """The same; what the cluster refuses, such as a right that is missing, is told as an error."""
    from holdfast.drivers.kubernetes.cluster import ApiError
    from holdfast.drivers.kubernetes.incluster import control, quiet
    from holdfast.drivers.kubernetes.submit_refusals import About, refused

    try:
        return await control(cluster, place, quiet)
    except ApiError as error:
        what = About(f"the controller of {place.job.name}", "v1", cluster.namespace)
        raise refused(error, what) from error
