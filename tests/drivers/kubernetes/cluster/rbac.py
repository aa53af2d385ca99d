"""Who may do what: tokens of service accounts against the roles that are bound to them."""

from typing import NamedTuple

from holdfast.drivers.kubernetes.cluster import (
    BINDINGS,
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    ROLES,
    SERVICE_ACCOUNTS,
)
from tests.drivers.kubernetes.cluster.refusal import Body, RefusalError
from tests.drivers.kubernetes.cluster.store import Store

BOUND = "#"  # between the name of an account and the UID of the pod it is mounted in
ADMIN = "admin"
ACCOUNT = "system:serviceaccount:"


class Wish(NamedTuple):
    """A call, as access rules see it. `resource` is `pods`, or `pods/log`."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str


class Access:
    """Answers for tokens. `denied`: what even an administrator may not, as (verb, resource)."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.denied: set[tuple[str, str]] = set()

    def user(self, header: str) -> str:
        """Who a bearer token belongs to; without one it is the administrator's own machine."""
        token = header.removeprefix("Bearer ").strip()
        if token in ("", ADMIN):
            return ADMIN
        if not token.startswith(ACCOUNT):
            raise RefusalError(401, "Unauthorized")
        return token.partition(BOUND)[0]

    def reviewed(self, bearer: str) -> Body:
        """The status of a TokenReview."""
        name, _, account = bearer.partition(BOUND)[0].removeprefix(ACCOUNT).partition(":")
        if not bearer.startswith(ACCOUNT) or not self._store.find(SERVICE_ACCOUNTS, name, account):
            return {"authenticated": False}
        return {"authenticated": True, "user": {"username": token(name, account)}}

    def check(self, user: str, wish: Wish) -> None:
        """Raises `RefusalError` (403) unless it is allowed."""
        if not self.allows(user, wish):
            where = f' in the namespace "{wish.namespace}"' if wish.namespace else ""
            named = f'{wish.resource} "{wish.name}"' if wish.name else wish.resource
            why = f'User "{user}" cannot {wish.verb} resource "{wish.resource}" in API group'
            raise RefusalError(403, f'{named} is forbidden: {why} "{wish.group}"{where}')

    def allows(self, user: str, wish: Wish) -> bool:
        """Whether the roles of this user allow it."""
        if {(wish.verb, wish.resource), ("*", wish.resource)} & self.denied:
            return False
        if user == ADMIN or wish.resource.startswith("selfsubject"):
            return True
        return any(_fits(rule, wish) for rule in self._rules(user, wish.namespace))

    def listed(self, user: str, namespace: str) -> Body:
        """The status of a SelfSubjectRulesReview. What is denied is so by another authorizer, which
        the server knows nothing of."""
        everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
        rules = [everything] if user == ADMIN else self._rules(user, namespace)
        return {"resourceRules": rules, "nonResourceRules": [], "incomplete": bool(self.denied)}

    def _rules(self, user: str, namespace: str) -> list[Body]:
        bindings = self._store.all(CLUSTER_BINDINGS)
        bindings += self._store.all(BINDINGS, namespace) if namespace else []
        mine = [b for b in bindings if any(_is(s, b, user) for s in b.get("subjects", []))]
        roles = [self._role(binding) for binding in mine]
        return [rule for role in roles if role for rule in role.get("rules") or []]

    def _role(self, binding: Body) -> Body | None:
        ref = binding["roleRef"]
        kind = CLUSTER_ROLES if ref["kind"] == "ClusterRole" else ROLES
        return self._store.find(kind, binding["metadata"].get("namespace", ""), ref["name"])


def token(namespace: str, account: str) -> str:
    """The token of a service account."""
    return f"{ACCOUNT}{namespace}:{account}"


def bound_to(header: str) -> str:
    """The UID of the pod whose token this is; "" if it is not that of a pod."""
    return header.partition(BOUND)[2].strip()


def _is(subject: Body, binding: Body, user: str) -> bool:
    home = subject.get("namespace") or binding["metadata"].get("namespace", "")
    return subject["kind"] == "ServiceAccount" and token(home, subject["name"]) == user


def _fits(rule: Body, wish: Wish) -> bool:
    names = rule.get("resourceNames")
    return (
        bool({"*", wish.verb} & set(rule["verbs"]))
        and bool({"*", wish.group} & set(rule.get("apiGroups", [])))
        and bool({"*", wish.resource} & set(rule.get("resources", [])))
        and (not names or wish.name in names)
    )
