"""Everything a cluster needs for a job, in the order to apply it, as data or as YAML.

`render` is a pure function of the request: the same job gives the same objects, in every process.
What an engine cannot honour, or what cannot work, is an error before anything is rendered.
"""

from collections.abc import Sequence

from holdfast.drivers.kubernetes.manifests import checks, support, text
from holdfast.drivers.kubernetes.manifests.engines import ENGINES
from holdfast.drivers.kubernetes.manifests.notes import NOTES
from holdfast.drivers.kubernetes.manifests.request import NEWEST, Body, Request
from holdfast.spec import Job
from holdfast.spec.cluster import Engine, Mode


def requested(
    job: Job,
    *,
    engine: Engine | None = None,
    mode: Mode | None = None,
    namespace: str | None = None,
    version: tuple[int, int] = NEWEST,
    mpi_version: str | None = None,
    code: bytes = b"",
    code_name: str = "",
) -> Request:
    """A request for this job; what is not said comes from its `kubernetes` section.

    The job of the request says what was said, so that the file that agents read does too.
    """
    said = {"engine": engine, "mode": mode, "namespace": namespace, "mpi_version": mpi_version}
    given = {key: value for key, value in said.items() if value is not None}
    section = job.kubernetes.model_copy(update=given)
    whole = job.model_copy(update={"kubernetes": section})
    return Request(whole, section.engine, section.mode, section.namespace, version, code, code_name)


def render(request: Request) -> list[Body]:
    """Every object of the job. Raises the first of `checks.problems` if there is one."""
    checks.require(request)
    return unchecked(request)


def unchecked(request: Request) -> list[Body]:
    """Every object of a job that has been checked."""
    pods = ENGINES[request.engine](request)
    return [*support.before(request), *pods, *support.after(request)]


def as_text(bodies: Sequence[Body]) -> str:
    """The objects as one YAML stream, with comments."""
    return text.documents(bodies, text.Notes(NOTES))
