"""Several clusters for one job, in the order in which they are asked."""

from typing import Annotated

from pydantic import Field

from holdfast.spec.section import LongSeconds, Object, Section


class ClusterChoice(Section):
    """A cluster that may run the job, and how long it is waited for."""

    context: Annotated[str, Field(min_length=1, max_length=253)]
    """Context of the kubeconfig."""
    namespace: Object | None = None
    """Namespace there; default: that of the context."""
    max_wait_s: LongSeconds | None = 600
    """Time until all nodes must have a machine; then the next cluster is asked. Without a limit
    (`null`) it is waited for as long as it takes."""
    lost_after_s: LongSeconds = 300
    """A cluster that cannot be reached, or has no controller for the job, for this long is lost:
    the job goes on elsewhere from the archive."""
