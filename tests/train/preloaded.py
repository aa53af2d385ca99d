"""What the forkserver of these tests imports, for processes that are forked by the hundred."""

from tests import huge_pages
from tests.train import curves, workload

__all__ = ["curves", "workload"]

huge_pages.share()
