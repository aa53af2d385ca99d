"""What Holdfast needs of a cluster: a dozen calls, as a protocol, and the kinds they are about.

Objects are plain dicts, except where thousands are listed or watched: then the caller names a
msgspec struct with the few fields it needs, and nothing else is decoded.
"""

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from holdfast.drivers.kubernetes.manifests.request import Body

T = TypeVar("T")

FIELD_MANAGER = "holdfast"


def timestamp(at: float) -> str:
    """Seconds since the epoch as Kubernetes writes a time."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Kind(NamedTuple):
    """A kind of object as the API knows it."""

    api: str  # "v1", "batch/v1", ...
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """The path of the objects, or of one of them."""
        root = f"/api/{self.api}" if "/" not in self.api else f"/apis/{self.api}"
        where = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{where}/{self.plural}" + (f"/{name}" if name else "")


class Listed(NamedTuple, Generic[T]):
    """Objects as they were at one version of the cluster."""

    items: list[T]
    version: str


class Change(NamedTuple, Generic[T]):
    """One change of a watched object."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: T
    version: str


class Bookmark(NamedTuple):
    """Everything up to this version has been told."""

    version: str


class ApiError(Exception):
    """The API server refused, or could not be reached (status 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        said = f"{status} {reason}" if status else reason
        super().__init__(f"{message} ({said})")
        self.status, self.reason, self.message = status, reason, message

    @property
    def transient(self) -> bool:
        """Whether the same call may succeed a little later."""
        return self.status in (0, 429, 500, 502, 503, 504)


class NotFoundError(ApiError):
    """404: there is no such object (or no such kind)."""


class ConflictError(ApiError):
    """409: it exists already, was changed meanwhile, or another manager owns the field."""


class GoneError(ApiError):
    """410: the version to watch from is too old; list again."""


class DeniedError(ApiError):
    """401 or 403: no rights."""


class InvalidError(ApiError):
    """400 or 422: the object is not accepted."""


class Cluster(Protocol):
    """One cluster and a namespace in it. Every call may raise `ApiError`."""

    namespace: str

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Body:
        """One object. Raises `NotFoundError`."""

    async def listed(
        self, kind: Kind, shape: type[T], *, labels: str = "", name: str = "",
        namespace: str | None = None,
    ) -> Listed[T]:  # fmt: skip
        """All objects with these labels (a selector as text), or the one with this name;
        `namespace` "" means everywhere."""

    def watched(
        self, kind: Kind, shape: type[T], *, since: str, labels: str = "", name: str = "",
        namespace: str | None = None,
    ) -> AsyncIterator[Change[T] | Bookmark]:  # fmt: skip
        """Changes since a version, until the server ends the stream. Raises `GoneError`."""

    async def create(self, body: Body) -> Body:
        """Create, strictly. Raises `ConflictError` if it exists."""

    async def apply(self, body: Body, *, force: bool = True, dry_run: bool = False) -> Body:
        """Server-side apply as `holdfast`, strictly. Raises `ConflictError` unless forced."""

    async def patch(
        self, kind: Kind, name: str, patch: Body, *, part: str = "", namespace: str | None = None
    ) -> Body:
        """JSON merge patch of an object or of its subresource `part`."""

    async def delete(
        self, kind: Kind, name: str, *, uid: str | None = None, version: str | None = None,
        grace_s: int | None = None, foreground: bool = False, namespace: str | None = None,
    ) -> None:  # fmt: skip
        """Delete; one that is not there, or is another (by UID), is as good as deleted. With
        `version`, only what it was then: raises `ConflictError` if it was changed since."""

    async def evict(self, pod: str, *, uid: str, grace_s: int | None = None) -> bool:
        """Evict by the Eviction API; False if a disruption budget forbids it now."""

    def log(
        self,
        pod: str,
        *,
        container: str,
        follow: bool = False,
        tail: int | None = None,
        since: float | None = None,
    ) -> AsyncIterator[str]:
        """Lines of a container's log; `since` (seconds since the epoch) leaves out earlier ones."""

    async def ask(self, path: str, *, query: Mapping[str, str] | None = None) -> Any:
        """GET any path of the API: `/version`, `/apis`, ..."""

    async def close(self) -> None:
        """Close all connections."""


PODS = Kind("v1", "Pod", "pods")
NODES = Kind("v1", "Node", "nodes", namespaced=False)
SECRETS = Kind("v1", "Secret", "secrets")
CONFIG_MAPS = Kind("v1", "ConfigMap", "configmaps")
SERVICES = Kind("v1", "Service", "services")
SERVICE_ACCOUNTS = Kind("v1", "ServiceAccount", "serviceaccounts")
CLAIMS = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVENTS = Kind("v1", "Event", "events")
QUOTAS = Kind("v1", "ResourceQuota", "resourcequotas")
DEPLOYMENTS = Kind("apps/v1", "Deployment", "deployments")
LEASES = Kind("coordination.k8s.io/v1", "Lease", "leases")
JOBS = Kind("batch/v1", "Job", "jobs")
CRON_JOBS = Kind("batch/v1", "CronJob", "cronjobs")
NAMESPACES = Kind("v1", "Namespace", "namespaces", False)
PRIORITIES = Kind("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", False)
BUDGETS = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
POLICIES = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
ROLES = Kind("rbac.authorization.k8s.io/v1", "Role", "roles")
BINDINGS = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
CLUSTER_ROLES = Kind("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", False)
CLUSTER_BINDINGS = Kind(
    "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", False
)
CLAIM_TEMPLATES = Kind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
STORAGE_CLASSES = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", False)
DEFINITIONS = Kind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", False
)
ACCESS_REVIEWS = Kind(
    "authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", False
)
RULES_REVIEWS = Kind(
    "authorization.k8s.io/v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", False
)
OTHERS_ACCESS_REVIEWS = Kind(
    "authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", False
)
TOKEN_REVIEWS = Kind("authentication.k8s.io/v1", "TokenReview", "tokenreviews", False)


def kind_of(body: Body) -> Kind:
    """The kind of a manifest. Kinds that are not listed here follow the rule for plurals."""
    api, kind = str(body["apiVersion"]), str(body["kind"])
    for known in KINDS:
        if (known.api, known.kind) == (api, kind):
            return known
    plural = kind.lower()
    plural = plural[:-1] + "ies" if plural.endswith("y") else plural + "s"
    return Kind(api, kind, plural)


KINDS = tuple(value for value in list(globals().values()) if isinstance(value, Kind))
