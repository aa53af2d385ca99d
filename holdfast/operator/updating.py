"""Which changes of a spec become a hot update of the job that runs: arguments, variables, code, and
the image where pods are Holdfast's own. Pure.

What a job runs is in its ConfigMap: the job file that it was made from, and, in an annotation, what
the operator has asked for since. The controller takes that for a wish as `holdfast update` makes
them, and prepares it on the nodes before it is used. A variable cannot be taken back from the
processes that libraries were loaded in, so a spec without one that the job has is another change.
So is one with another image and other arguments or code at once: pods are replaced one by one, and
those that are left would run the new arguments with the old image.

Code is in a ConfigMap that the spec names, and known by that name: another name is other code. Only
then its contents are read, and copied to where the controller may read them.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from holdfast import bundles
from holdfast.drivers.kubernetes.images import refusal
from holdfast.drivers.kubernetes.manifests.names import SPEC_CODE, UPDATE_SPEC
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.remote import job_of
from holdfast.errors import Error
from holdfast.messages import UpdateJob
from holdfast.spec import Job
from holdfast.spec.load import to_yaml
from holdfast.status import JobStatus
from holdfast.versions import ENV

BY = "TrainingJob"


class SpecUpdate(NamedTuple):
    """`ask`: what is to be written down now. `asked`: the wish that says what the spec says.
    `waits`: the spec says what a job that runs cannot take over. `code`: name of the code that
    `ask` brings, `bundle`: that code, once it has been read; `missing`: why it cannot be."""

    ask: UpdateJob | None = None
    asked: UpdateJob | None = None
    waits: bool = False
    code: str = ""
    bundle: bytes = b""
    missing: str = ""

    def with_bundle(self, data: bytes) -> "SpecUpdate":
        """The code has been read."""
        assert self.ask is not None, "code is read for it"
        ask = msgspec.structs.replace(self.ask, code=bundles.digest(data))
        return self._replace(ask=ask, bundle=data)

    @property
    def annotations(self) -> dict[str, str]:
        """By which the controller hears of it, and we know it again."""
        told = {UPDATE_SPEC: msgspec.json.encode(self.ask).decode()}
        return told | ({SPEC_CODE: self.code} if self.code else {})


NONE = SpecUpdate()


def spec_update(file: Body | None, request: Request, generation: int) -> SpecUpdate:
    """What to do about this spec, given the ConfigMap of the job."""
    if file is None:
        return NONE
    asked, new = _asked(file), request.job
    try:
        old = job_of(file)
    except Error:  # somebody has changed it by hand
        return NONE
    env = _env(asked) if asked is not None else dict(old.env)
    args = asked.args if asked is not None else old.args
    image = (asked.image if asked is not None else "") or _image(old)
    told, imaged = (args, env) != (new.args, dict(new.env)), image != _image(new)
    has = (file["metadata"].get("annotations") or {}).get(SPEC_CODE)
    coded = new.code if has and new.code and new.code != has else ""
    if not (told or imaged or coded or bool(new.code) != bool(has)):
        return SpecUpdate(asked=asked)
    same: dict[str, object] = {"args": new.args, "env": new.env}
    if has and new.code:
        same["code"] = new.code
    if old.image is not None and new.image is not None:
        same["image"] = old.image.model_copy(update={"name": new.image.name})
    if to_yaml(old.model_copy(update=same)) != to_yaml(new) or env.keys() - new.env.keys():
        return SpecUpdate(waits=True)
    if imaged and (told or coded or refusal(request)):
        return SpecUpdate(waits=True)
    named = imaged or (asked is not None and asked.image)
    ask = UpdateJob(
        by=BY,
        id=f"spec-{generation}",
        code=asked.code if asked is not None else "",
        args=new.args,
        sets={f"{ENV}{name}": value for name, value in new.env.items()},
        image=_image(new) if named else "",
    )
    return SpecUpdate(ask=ask, code=coded)


def _image(job: Job) -> str:
    return job.image.name if job.image is not None else ""


def story(order: UpdateJob, record: JobStatus | None) -> tuple[str, str]:
    """The reason and the message of a condition: what has become of it."""
    updates = record.updates if record is not None else ()
    known = next((one for one in updates if one.id == order.id), None)
    if known is None or known.stage == "preparing":
        return "Updating", "the nodes prepare it"
    what, why = f"version {known.version}", f": {known.why}" if known.why else ""
    match known.stage:
        case "refused":
            return "UpdateRefused", f"{what} cannot be used{why}"
        case "reverted":
            return "UpdateReverted", f"{what} was rolled back{why}"
        case "waiting":
            return "Updating", f"{what} is used from the next attempt on"
        case stage:
            return "Updated", f"{what} is {stage}"


def _env(order: UpdateJob) -> Mapping[str, str]:
    return {name.removeprefix(ENV): value for name, value in order.sets.items()}


def _asked(file: Body) -> UpdateJob | None:
    text = (file["metadata"].get("annotations") or {}).get(UPDATE_SPEC)
    try:
        return msgspec.json.decode(text, type=UpdateJob) if text else None
    except msgspec.MsgspecError:
        return None
