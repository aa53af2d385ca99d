"""Everything a job needs on a cluster beside the objects that make its pods.

What has to be there before the first pod comes first: accounts and rights, the job file, services,
claims, policies. The controller comes after the engine's objects, so that their order of creation
is that in which a person would explain them; monitors come last, because a cluster without the
Prometheus operator refuses them.

A managed CronJob gets all this once, but not the controller: each of its submissions starts one.
"""

from holdfast.drivers.kubernetes.manifests.request import Body, Request
from holdfast.drivers.kubernetes.manifests.support import (
    access,
    claims,
    controller,
    monitors,
    protection,
    services,
)


def before(request: Request) -> list[Body]:
    """Objects that come before those of the engine."""
    return [
        *access.objects(request),
        *controller.configuration(request),
        *controller.code(request),
        *services.objects(request),
        *claims.objects(request),
        *protection.objects(request),
    ]


def after(request: Request) -> list[Body]:
    """Objects that come after those of the engine."""
    return [*controller.deployment(request), *monitors.objects(request)]
