"""What a Job's `podFailurePolicy` says about a pod."""

from typing import Literal

from tests.drivers.kubernetes.cluster.making import exit_code
from tests.drivers.kubernetes.cluster.refusal import Body

Decision = Literal["Ignore", "Count", "FailJob"]


def decision(job: Body, pod: Body) -> Decision:
    """The action of the first rule that fits; without one the failure counts."""
    for rule in job["spec"].get("podFailurePolicy", {}).get("rules", []):
        if _fits(rule, pod):
            action: Decision = rule["action"]
            return action
    return "Count"


def _fits(rule: Body, pod: Body) -> bool:
    for wanted in rule.get("onPodConditions", []):
        for told in pod.get("status", {}).get("conditions", []):
            if (told["type"], told["status"]) == (wanted["type"], wanted.get("status", "True")):
                return True
    codes = rule.get("onExitCodes")
    if codes is None:
        return False
    code = exit_code(pod, codes.get("containerName", ""))
    if not code:
        return False
    return bool((code in codes["values"]) == (codes["operator"] == "In"))
