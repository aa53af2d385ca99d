"""What no schema can say, in the expression language of the API server (CEL).

They repeat what the model's validators and the checks of manifests refuse, so that `kubectl apply`
refuses it at once; tests/operator holds each of them against the model. All else that can be wrong
is told by the operator, as a condition of the job.
"""

from typing import NamedTuple

from holdfast.operator.structural import Schema


class Rule(NamedTuple):
    """An expression that must be true, and what is said when it is not."""

    rule: str
    message: str


def _exactly_one(*keys: str) -> Rule:
    tests = ", ".join(f"has(self.{key})" for key in keys)
    return Rule(
        f"[{tests}].filter(given, given).size() == 1",
        f"give exactly one of {', '.join(keys[:-1])} and {keys[-1]}",
    )


_LISTED = "(has(self.download) && self.download.size() > 0)"

ROOT = Rule(
    "size(self.metadata.name) <= 50 && !self.metadata.name.contains('.')",
    "metadata.name: at most 50 lower-case letters, digits and dashes, because pod names derive "
    "from it",
)

RULES: dict[str, tuple[Rule, ...]] = {
    "": (
        _exactly_one("script", "module", "command"),
        Rule(
            "self.kubernetes.mode != 'plain' || self.nodes.spares == 0",
            "nodes.spares: spares need agents, which mode plain does not have",
        ),
        Rule(
            "(self.kubernetes.engine == 'cronjob') == has(self.schedule)",
            "schedule: required with engine cronjob, and supported by no other engine",
        ),
        Rule(
            "!has(self.sweep) || (self.kubernetes.mode == 'plain' && "
            "self.kubernetes.engine in ['job', 'cronjob'])",
            "sweep: supported only by engines job and cronjob in mode plain",
        ),
        Rule(
            "!has(self.sweep) || (self.nodes.count == 1 && !has(self.elasticity))",
            "sweep: trials are independent, so nodes.count must be 1 and elasticity unset",
        ),
        Rule(
            "!has(self.elasticity) || self.elasticity.min_nodes <= self.nodes.count",
            "elasticity.min_nodes is larger than nodes.count",
        ),
        Rule(
            "!has(self.elasticity) || !has(self.elasticity.max_nodes) || "
            "self.nodes.count <= self.elasticity.max_nodes",
            "elasticity.max_nodes is smaller than nodes.count",
        ),
    ),
    "sweep": (Rule("self.parallel <= self.trials", "parallel is larger than trials"),),
    "secrets[]": (
        Rule(
            "(has(self.env) && self.env.size() > 0) || self.all_env || has(self.path)",
            "set at least one of env, all_env and path",
        ),
    ),
    "resources.claims[]": (_exactly_one("template", "device_class"),),
    "datasets[]": (
        Rule(
            f"!has(self.pvc) || (!has(self.host_path) && !{_LISTED})",
            "pvc and host_path or download are mutually exclusive",
        ),
        Rule(
            f"[has(self.pvc), has(self.host_path) || {_LISTED}, has(self.url), has(self.source)]"
            ".filter(given, given).size() == 1",
            "give exactly one of pvc, host_path, url, download and source",
        ),
        Rule(
            "has(self.path) != has(self.source)",
            "path is needed without source, and chosen by Holdfast with it",
        ),
        Rule(
            "has(self.source) || (!has(self.endpoint) && !has(self.manifest) && "
            "!has(self.sha256) && !has(self.cache))",
            "endpoint, manifest, sha256 and cache have an effect with source only",
        ),
    ),
    "datasets[].cache": (
        Rule(
            "!has(self.folder) || !has(self.volume_class)",
            "give at most one of folder and volume_class",
        ),
    ),
    "checkpoints.local": (_exactly_one("host_path", "pvc_class"),),
    "checkpoints.shared": (Rule("has(self.pvc)", "pvc is required"),),
}
"""Rules by the place of the section in the job file; `[]` stands for each item of a list."""

ITEMS_MAX = 256
"""Items of a list with rules: the API server wants to know what they cost at most."""


def ruled(spec: Schema) -> Schema:
    """The schema of a job with the rules in their places; `spec` itself is changed."""
    for path, rules in RULES.items():
        section = _at(spec, path)
        section["x-kubernetes-validations"] = [rule._asdict() for rule in rules]
    return spec


def _at(schema: Schema, path: str) -> Schema:
    for step in path.split(".") if path else ():
        schema = schema["properties"][step.removesuffix("[]")]
        if step.endswith("[]"):
            schema["maxItems"] = ITEMS_MAX
            schema = schema["items"]
    return schema
