"""Several clusters for one job, in the order in which they are asked."""

from typing import Annotated

from pydantic import Field

from holdfast.spec.section import LongSeconds, Object, Section


class ClusterChoice(Section):
    """A cluster that may run the job, and how long it is waited for."""

    context: Annotated[str, Field(min_length=1, max_length=253)]
    """Context of the kubeconfig."""
    namespace: Object | None = None
    """Namespace in that cluster. Default: the namespace of the context."""
    max_wait_s: LongSeconds | None = 600
    """Time within which all nodes must be scheduled; after that the next cluster is tried. `null`:
    no limit."""
    lost_after_s: LongSeconds = 300
    """A cluster that has been unreachable, or without a controller for the job, for this long is
    considered lost: the job continues in another cluster from the archive."""
