"""Tells JAX where it runs, so that `jax.distributed.initialize()` needs no arguments.

JAX asks every known kind of cluster whether it runs there; this module, imported ahead of the
script, adds ours. A warm worker waits here for its rank.

JAX's preemption service would take SIGTERM for a notice that a loop has to ask for, so that a
worker that does not ask goes on until it is killed. Holdfast gives its notices itself: the service
is off unless `JAX_ENABLE_PREEMPTION_SERVICE` says otherwise.
"""

import importlib
import os
from typing import Any

_clusters: Any = importlib.import_module("jax._src.clusters")
if "JAX_ENABLE_PREEMPTION_SERVICE" not in os.environ:
    importlib.import_module("jax").config.update("jax_enable_preemption_service", False)


class HoldfastCluster(_clusters.ClusterEnv):  # type: ignore[misc]
    """Workers of Holdfast. The signatures are JAX's."""

    name = "holdfast"

    @classmethod
    def is_env_present(cls) -> bool:
        """Whether this is one of them, and has its rank."""
        return "HOLDFAST_NODE" in os.environ and "RANK" in os.environ

    @classmethod
    def get_coordinator_address(
        cls,
        timeout_secs: int | None,  # noqa: ARG003
        override_coordinator_port: str | None,  # noqa: ARG003
    ) -> str:
        """Where process 0 will listen."""
        return os.environ["JAX_COORDINATOR_ADDRESS"]

    @classmethod
    def get_process_count(cls) -> int:
        """How many processes there are."""
        return int(os.environ["WORLD_SIZE"])

    @classmethod
    def get_process_id(cls) -> int:
        """Which of them this is."""
        return int(os.environ["RANK"])

    @classmethod
    def get_local_process_id(cls) -> int | None:
        """Its number on its node, where it has one device; None where it has all."""
        several = int(os.environ["LOCAL_WORLD_SIZE"]) > 1
        return int(os.environ["LOCAL_RANK"]) if several else None


# The first that is present is taken: in a pod, or within a Slurm allocation, that would be another.
_types = _clusters.ClusterEnv._cluster_types
_types.insert(0, _types.pop(_types.index(HoldfastCluster)))
