"""Pod Security admission: what a namespace that enforces the `restricted` standard refuses."""

from collections.abc import Iterator

from tests.drivers.kubernetes.cluster.refusal import Body, forbidden

ENFORCE = "pod-security.kubernetes.io/enforce"
PROFILES = ("RuntimeDefault", "Localhost")
HOST = ("hostNetwork", "hostPID", "hostIPC")


def check(home: Body | None, pod: Body) -> None:
    """Raises `RefusalError` (403) for a pod that is less restricted than its namespace wants."""
    labels = (home or {"metadata": {}})["metadata"].get("labels") or {}
    if labels.get(ENFORCE) != "restricted":
        return
    if found := "; ".join(_violations(pod["spec"])):
        why = f'violates PodSecurity "restricted:latest": {found}'
        raise forbidden("pods", pod["metadata"].get("name", ""), why)


def _violations(spec: Body) -> Iterator[str]:
    whole = spec.get("securityContext") or {}
    containers = [*spec.get("initContainers", []), *spec["containers"]]
    yield from (f"host namespaces ({key}=true)" for key in HOST if spec.get(key))
    if any("hostPath" in volume for volume in spec.get("volumes", [])):
        yield "restricted volume types (volume uses hostPath)"
    for container in containers:
        own, named = container.get("securityContext") or {}, f'container "{container["name"]}"'
        both = {**whole, **own}
        capabilities = own.get("capabilities") or {}
        if own.get("privileged"):
            yield f"privileged ({named})"
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"allowPrivilegeEscalation != false ({named})"
        added = set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}
        if "ALL" not in capabilities.get("drop", ()) or added:
            yield f"unrestricted capabilities ({named})"
        if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
            yield f"runAsNonRoot != true ({named})"
        if (both.get("seccompProfile") or {}).get("type") not in PROFILES:
            yield f"seccompProfile ({named})"
