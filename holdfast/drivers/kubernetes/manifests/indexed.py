"""Indexed Jobs, alone or inside of something else: their pods, their size, how they take failures.

Managed: the Job replaces lost pods and is otherwise kept out of the way: it has no failure budget
of its own, and it is complete as soon as as many pods have ended well as train, so that nobody
waits for a spare that never found room. Each replacement comes later than the one before, for which
reason spares matter here more than elsewhere.

Plain: torchrun repairs crashed processes in place, the Job replaces lost pods and fails as a whole
once one of them is lost too often. A sweep is a Job whose indexes are trials of their own.
"""

from dataclasses import replace

from holdfast.drivers.kubernetes.manifests import gang, pod, program
from holdfast.drivers.kubernetes.manifests.groups import fewest, groups, spares_apart
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.spec.sweep import Sweep

NO_BUDGET = 2**31 - 1  # the largest number there is: counting failures is Holdfast's business
REPLACED = 6  # as often as Kubernetes' own default, where torchrun repairs what can be repaired


def node(request: Request, first: str, *, env: tuple[Body, ...] = (), whole: bool = False) -> Part:
    """A pod that runs a node. `first` is the host name that the others meet at in plain mode;
    `whole`: the engine answers every failure by restarting the whole job."""
    if request.managed:
        return Part(command=program.agent(request), subdomain=request.name, env=env)
    if request.job.sweep is not None:
        return Part(command=_trial(request), env=env)
    options = program.rendezvous(request, first, in_place=not whole)
    ports = request.job.network.ports
    return Part(
        command=program.meeting(request, first, program.torchrun(request, *options)),
        port=None if request.job.command else ("rendezvous", ports.rendezvous),
        subdomain=request.name,
        env=env,
    )


def _trial(request: Request) -> tuple[str, ...]:
    if request.workers == 1:
        return program.trial(request, program.script(request))
    return program.trial(request, program.torchrun(request, "--standalone"))


def template(request: Request, part: Part, role: str = "node") -> Body:
    """Template of the pods of this role, as members of the gang."""
    return gang.member(request, pod.template(request, replace(part, role=role)), role)


def lifetime(request: Request) -> Body:
    """Suspension, time limit, time to live: a Job has all three."""
    said = request.job.lifetime
    found: Body = {
        "suspend": said.suspend or None,
        "activeDeadlineSeconds": said.time_limit_s,
        "ttlSecondsAfterFinished": said.keep_s,
    }
    return {key: value for key, value in found.items() if value is not None}


def spec(request: Request, role: str, template: Body) -> Body:
    """Spec of an Indexed Job for the pods of this role, without its lifetime."""
    if request.job.sweep is not None:
        return {**_sweep(request.job.sweep), "template": template}
    rules = _managed(request, role) if request.managed else _plain(request)
    return {**size(groups(request)[role]), **rules, "template": template}


def size(count: int) -> Body:
    """An Indexed Job of so many pods, all at once."""
    return {"completionMode": "Indexed", "completions": count, "parallelism": count}


def _managed(request: Request, role: str) -> Body:
    """No podFailurePolicy: it would force the replacement policy `Failed`, and a dead machine would
    then hold its pod, and the replacement, for as long as it is gone."""
    found: Body = {"backoffLimit": NO_BUDGET, "podReplacementPolicy": "TerminatingOrFailed"}
    if groups(request)[role] > 1:
        found["successPolicy"] = {"rules": [{"succeededCount": _enough(request, role)}]}
    return found


def _enough(request: Request, role: str) -> int:
    """Pods that surely run when the training ends. Agents end well only then, all of them."""
    if not spares_apart(request):
        return fewest(request)
    return max(1, fewest(request) - request.spares) if role == "node" else 1


def _plain(request: Request) -> Body:
    """Failures are counted for each index: the loss of the first node takes all others with it, and
    the delay between two tries does not grow with the failures of the others."""
    said = request.job.recovery.restarts
    often = said if request.job.command else min(said, REPLACED)
    return {"backoffLimitPerIndex": often, "maxFailedIndexes": 0}


def _sweep(sweep: Sweep) -> Body:
    found: Body = {
        "completionMode": "Indexed",
        "completions": sweep.size,
        "parallelism": sweep.parallel,
        "backoffLimitPerIndex": sweep.retries,
    }
    if sweep.max_failed is not None:
        found["maxFailedIndexes"] = sweep.max_failed
    return found
