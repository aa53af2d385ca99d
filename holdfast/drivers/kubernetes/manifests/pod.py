"""The template of a pod, the same for every engine but for what its `Part` says.

One container does the work: Holdfast's agent in managed mode, the user's program in plain mode.
Everything it needs stands in the job description; the overlay is merged in last.
"""

import math
from pathlib import PurePosixPath

from holdfast.drivers.kubernetes.manifests import network, placement, security, storage
from holdfast.drivers.kubernetes.manifests.names import pod_labels
from holdfast.drivers.kubernetes.manifests.overlay import merged
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.spec import Job
from holdfast.spec.resources import Image

CONTROLLER_PORT = 7071
LEAVE_S = 15.0  # of an agent, to say goodbye after its workers have stopped
GRACE_MIN_S = 30  # as Kubernetes gives by itself


def template(request: Request, part: Part) -> Body:
    """A PodTemplateSpec: `metadata` and `spec`, the overlay merged in."""
    job = request.job
    annotations = {**job.metadata.annotations, **network.annotations(job)}
    metadata: Body = {"labels": pod_labels(request, part.role)}
    if annotations:
        metadata["annotations"] = annotations
    found = {"metadata": metadata, "spec": _spec(request, part)}
    return merged(found, job.overlay, main=part.container)


def _spec(request: Request, part: Part) -> Body:
    job = request.job
    mounted = storage.mounted(request, part)
    return _given(
        restartPolicy=part.restart,
        serviceAccountName=job.access.service_account or request.name,
        automountServiceAccountToken=False,
        enableServiceLinks=False,  # or a Service called `master` would set MASTER_PORT
        subdomain=part.subdomain,
        **network.pod(job),
        terminationGracePeriodSeconds=grace_s(job, managed=request.managed),
        **placement.pod(request, part),
        securityContext=security.pod(request),
        imagePullSecrets=[{"name": name} for name in image(job).pull_secrets],
        initContainers=[*network.sidecars(job, part), *mounted.before],
        containers=[_container(request, part, mounted)],
        volumes=[*network.volumes(job, part), *mounted.volumes],
        resourceClaims=_claims(request, part),
    )


def _container(request: Request, part: Part, mounted: storage.Mounted) -> Body:
    job = request.job
    variables = [*part.env, *_own_env(request, part), *network.env(job, part), *mounted.env]
    variables += [] if request.managed else [_variable(k, v) for k, v in job.env.items()]
    return _given(
        name=part.container,
        image=image(job).name,
        imagePullPolicy=image(job).pull,
        command=list(part.command),
        workingDir=_workdir(job),
        ports=_ports(request, part),
        env=_last_wins(variables + _secret_env(job)),
        envFrom=[*mounted.env_from, *_secrets_whole(job)],
        resources=resources(job, part),
        volumeMounts=[*network.mounts(job, part), *mounted.mounts],
        **(_probes() if request.managed and not part.small else {}),
        securityContext=security.container(request),
    )


def _given(**fields: object) -> Body:
    """Only what says something."""
    return {key: value for key, value in fields.items() if value not in (None, [], {}, ())}


def image(job: Job) -> Image:
    """The image, which the checks have asked for."""
    assert job.image is not None, "checked before"
    return job.image


def grace_s(job: Job, *, managed: bool) -> int:
    """Seconds from SIGTERM to SIGKILL: time for a checkpoint, and for the agent to say goodbye.
    Never less than without us: what is done sooner ends sooner."""
    wanted = job.recovery.stop_grace_s + (LEAVE_S if managed else 0.0)
    return max(GRACE_MIN_S, math.ceil(wanted))


def _workdir(job: Job) -> str | None:
    """Where the program starts: `workdir`, relative to the image's."""
    base = image(job).workdir if job.code is None else storage.CODE
    if job.workdir == ".":
        return base
    return str(PurePosixPath(base or "/") / job.workdir)


def _ports(request: Request, part: Part) -> list[Body]:
    ports = [part.port] if part.port is not None else []
    if request.managed and not part.small:
        ports.append(("agent", request.job.network.ports.agent))
    return [{"name": name, "containerPort": number} for name, number in ports]


def _own_env(request: Request, part: Part) -> list[Body]:
    """What an agent has to know before it reaches the controller; the rest comes from there."""
    if not request.managed:
        return []
    return [
        _variable("HOLDFAST_JOB", request.name),
        _variable("HOLDFAST_ENGINE", request.engine),
        _variable("HOLDFAST_ROLE", part.role),
        _variable("HOLDFAST_CONTROLLER", f"{request.name}-controller:{CONTROLLER_PORT}"),
        _variable("HOLDFAST_TOKEN_FILE", f"{storage.TOKEN}/token"),
        _variable("HOLDFAST_HOME", storage.HOME),
        _field("HOLDFAST_NODE", "metadata.uid"),
        _field("HOLDFAST_POD", "metadata.name"),
        _field("HOLDFAST_MACHINE", "spec.nodeName"),
        _field("HOLDFAST_ADDRESS", "status.podIP"),
    ]


def _variable(name: str, value: str) -> Body:
    return {"name": name, "value": value}


def _field(name: str, path: str) -> Body:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _last_wins(variables: list[Body]) -> list[Body]:
    """One entry for each name, the last; Kubernetes would take two and confuse whoever reads."""
    return list({variable["name"]: variable for variable in variables}.values())


def _secret_env(job: Job) -> list[Body]:
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": key}}}
        for secret in job.secrets
        for name, key in secret.env.items()
    ]


def _secrets_whole(job: Job) -> list[Body]:
    return [{"secretRef": {"name": secret.name}} for secret in job.secrets if secret.all_env]


def resources(job: Job, part: Part) -> Body:
    """Requests and limits of a container. CPU has a limit only where whole cores are wanted."""
    if part.small:
        sizes = _given(cpu=part.cpu, memory=part.memory)
        memory = _given(memory=part.memory)
        return _given(requests=sizes, limits=memory)
    asked = job.resources
    pages = {f"hugepages-{size}": amount for size, amount in asked.hugepages.items()}
    fixed = _given(memory=asked.memory, **{"ephemeral-storage": asked.ephemeral_storage}) | pages
    cpu = _given(cpu=asked.cpu)
    limits = {**(cpu if job.network.numa else {}), **fixed, **devices(job)}
    claims = [{"name": claim.name} for claim in asked.claims]
    return _given(requests={**cpu, **fixed}, limits=limits, claims=claims)


def devices(job: Job) -> dict[str, str]:
    """Counted devices of a node."""
    asked = job.resources
    gpus = {job.gpu_resource: str(asked.gpus)} if asked.gpus else {}
    extended = {name: str(count) for name, count in asked.extended.items()}
    return {**gpus, **network.devices(job), **extended}


def _claims(request: Request, part: Part) -> list[Body]:
    """Claims by template; templates made for this job are named after it."""
    claims = () if part.small else request.job.resources.claims
    return [
        {"name": c.name, "resourceClaimTemplateName": c.template or f"{request.name}-{c.name}"}
        for c in claims
    ]


def _probes() -> Body:
    """Ready: registered with the controller. Live: the agent's loop turns, never the training."""
    ready = {"path": "/ready", "port": "agent"}
    live = {"path": "/live", "port": "agent"}
    return {
        "readinessProbe": {"httpGet": ready, "periodSeconds": 5},
        "livenessProbe": {"httpGet": live, "periodSeconds": 10, "failureThreshold": 6},
    }
