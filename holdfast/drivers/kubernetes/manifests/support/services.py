"""Services: names for the pods of engines that give them none, and the controller's address."""

from holdfast.drivers.kubernetes.manifests.names import ROLE, metadata, selector
from holdfast.drivers.kubernetes.manifests.pod import CONTROLLER_PORT
from holdfast.drivers.kubernetes.manifests.request import Body, Request

METRICS_PORT = 7072  # of the controller
NAMELESS = frozenset(("pods", "job", "cronjob"))  # the other engines make a headless Service


def objects(request: Request) -> list[Body]:
    """The headless Service of the pods and the Service of the controller."""
    return [*_headless(request), *_controller(request)]


def _headless(request: Request) -> list[Body]:
    if request.engine not in NAMELESS:
        return []
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector(request)["matchLabels"],
    }
    return [_service(request, request.name, spec)]


def _controller(request: Request) -> list[Body]:
    if not request.managed:
        return []
    spec = {
        "selector": {**selector(request)["matchLabels"], ROLE: "controller"},
        "ports": [
            {"name": "controller", "port": CONTROLLER_PORT, "targetPort": "controller"},
            {"name": "metrics", "port": METRICS_PORT, "targetPort": "metrics"},
        ],
    }
    made = _service(request, f"{request.name}-controller", spec)
    made["metadata"]["labels"][ROLE] = "controller"
    return [made]


def _service(request: Request, name: str, spec: Body) -> Body:
    kind = {"apiVersion": "v1", "kind": "Service"}
    return {**kind, "metadata": metadata(request, name), "spec": spec}
