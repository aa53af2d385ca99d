"""Requests for tests, from a few keys of a job file."""

from typing import Any

from holdfast.drivers.kubernetes.manifests.request import NEWEST, Request
from holdfast.spec import Job, job_from_dict
from holdfast.spec.cluster import Engine, Mode


def job(**keys: Any) -> Job:
    """A job with an image and a script, unless said otherwise."""
    program = {} if {"command", "module"} & keys.keys() else {"script": "train.py"}
    return job_from_dict({"name": "run", "image": "img:1", **program, **keys}, where="test")


def asked(
    engine: Engine = "job",
    mode: Mode = "managed",
    *,
    namespace: str | None = None,
    version: tuple[int, int] = NEWEST,
    **keys: Any,
) -> Request:
    """A request for such a job."""
    return Request(job(**keys), engine, mode, namespace, version)
