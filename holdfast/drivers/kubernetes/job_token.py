"""The token of a job, by which agents and controller know each other: a Secret that pods mount.

The first controller makes it, those that follow read it. A pod without it does not start, so one
that is deleted while the job runs is made again, with the same token.
"""

import asyncio
import base64
import secrets
from contextlib import suppress

from holdfast.drivers.kubernetes.cluster import (
    SECRETS,
    ApiError,
    Cluster,
    ConflictError,
    NotFoundError,
)
from holdfast.drivers.kubernetes.manifests.names import JOB, MANAGED_BY, token_name
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.talk import Complaint, say
from holdfast.errors import Error

LOOK_S = 30.0  # between two looks whether it is there


async def token_of(cluster: Cluster, job: str, owner: Body) -> str:
    """The job's token. Raises `ApiError`, and `Error` name-taken."""
    while True:
        try:
            with suppress(NotFoundError):
                return await _read(cluster, job)
            await _make(cluster, job, owner, secrets.token_urlsafe(32))
        except ApiError as error:
            if not error.transient:
                raise
            say(f"the token cannot be read yet: {error}")
            await asyncio.sleep(1.0)


async def keep_token(cluster: Cluster, job: str, owner: Body, token: str) -> None:
    """Make it again whenever it is gone, for ever. One of somebody else is left alone: new pods
    are refused by this controller, which is said."""
    complain = Complaint()
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            if await _read(cluster, job) == token:
                complain("")
            else:
                complain(f"Secret {job}-token has another token: nodes that start are refused")
        except NotFoundError:
            await _made_again(cluster, job, owner, token)
        except Error as error:
            complain(f"{error.what}: nodes that start are refused")
        except ApiError as error:
            complain(f"Secret {job}-token cannot be looked at: {error}")


async def _made_again(cluster: Cluster, job: str, owner: Body, token: str) -> None:
    say(f"Secret {job}-token was deleted: it is made again")
    try:
        await _make(cluster, job, owner, token)
    except ApiError as error:
        say(f"Secret {job}-token cannot be made again: {error}")


async def _read(cluster: Cluster, job: str) -> str:
    body = await cluster.get(SECRETS, token_name(job))
    told = base64.b64decode((body.get("data") or {}).get("token", ""))
    if token := told.decode("ascii", "ignore"):
        return token
    raise Error(
        "name-taken",
        f"Secret '{job}-token' has no token",
        why=f"the controller of job {job!r} makes a Secret of that name with the key `token`; this "
        "one is of somebody else",
        help="give the job another name, or: "
        f"kubectl delete secret {job}-token -n {cluster.namespace}",
    )


async def _make(cluster: Cluster, job: str, owner: Body, token: str) -> None:
    body = {
        "apiVersion": SECRETS.api,
        "kind": SECRETS.kind,
        "metadata": {
            "name": token_name(job),
            "namespace": cluster.namespace,
            "labels": {JOB: job, MANAGED_BY: "holdfast"},
            "ownerReferences": [owner],
        },
        "type": "Opaque",
        "immutable": True,
        "stringData": {"token": token},
    }
    with suppress(ConflictError):
        await cluster.create(body)
