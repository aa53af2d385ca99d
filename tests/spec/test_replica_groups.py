"""What a job file may say of replicas: whole ones, of whole models, and their outer steps."""

from typing import Any

import pytest

from holdfast.errors import Error
from holdfast.spec import Job, job_from_dict

HSDP = {"dp_replicate": -1, "dp_shard": 4}


def job(replicas: dict[str, Any], **keys: Any) -> Job:
    recovery = {"mode": "replicas", **keys.pop("recovery", {}), "replicas": replicas}
    given = {"name": "job", "script": "train.py", "nodes": 6, "elasticity": {"min_nodes": 2}}
    return job_from_dict({**given, **keys, "recovery": recovery}, where="test")


def test_a_replica_is_one_node_unless_the_job_says_more() -> None:
    plain = {"name": "job", "script": "train.py", "nodes": 6}
    assert job_from_dict(plain, where="test").recovery.nodes_each == 1
    assert job({"nodes_each": 2}).recovery.nodes_each == 2
    groups = job({"nodes_each": 2, "sync_every": 100}).recovery.replicas
    assert groups is not None
    assert (groups.outer_lr, groups.outer_momentum) == (0.7, 0.9), "those of the paper"


@pytest.mark.parametrize("workers", [2, "auto"])
def test_a_model_may_be_sharded_over_the_nodes_of_a_replica(workers: Any) -> None:
    for every in (0, 10):
        assert job({"nodes_each": 2, "sync_every": every}, parallel=HSDP, workers_per_node=workers)


@pytest.mark.parametrize(
    ("replicas", "keys", "why"),
    [
        ({"nodes_each": 4}, {}, "nodes.count is 6, not a multiple of .*nodes_each; use 4 or 8"),
        ({"nodes_each": 3}, {}, "elasticity.min_nodes is 2, not .* use 3"),
        (
            {"nodes_each": 2},
            {"elasticity": {"min_nodes": 2, "max_nodes": 7}},
            "elasticity.max_nodes is 7",
        ),
        ({"nodes_each": 2}, {"recovery": {"mode": "in_process"}}, "requires recovery.mode"),
        (
            {"nodes_each": 2},
            {"parallel": {"dp_replicate": -1, "pp": 2}, "workers_per_node": 1},
            "stages of a pipeline are the outermost",
        ),
        (
            {"nodes_each": 2},
            {"parallel": {"dp_replicate": 1, "dp_shard": -1}, "workers_per_node": 2},
            "dp_replicate has to be -1",
        ),
        (
            {"nodes_each": 2},
            {"parallel": HSDP, "workers_per_node": 1, "elasticity": {"min_nodes": 4}},
            "does not divide the 6 ranks|takes 4 ranks, but a replica has 2",
        ),
        (
            {"nodes_each": 2, "sync_every": 4},
            {"parallel": {"dp_replicate": -1, "dp_shard": 2}, "workers_per_node": 2},
            "takes 2 ranks, but a replica has 4",
        ),
        (
            {"sync_every": 4},
            {"parallel": {"dp_replicate": -1, "gradient_compression": "bf16"}},
            "gradient_compression is incompatible with",
        ),
        ({"sync_every": 4}, {"recovery": {"check_replicas_every": 6}}, "use a multiple of .*(4)"),
        ({"sync_every": -1}, {}, "greater than or equal to 0"),
        ({"outer_lr": 0}, {}, "greater than 0"),
        ({"outer_momentum": 1}, {}, "less than 1"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_would(
    replicas: dict[str, Any], keys: dict[str, Any], why: str
) -> None:
    with pytest.raises(Error, match=why):
        job(replicas, **keys)
