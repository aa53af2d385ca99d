"""What compilers leave on this node: told to the controller, and brought here where it says so.

The folder is looked at, read and written by the storage process; it is started for that where there
is anything to tell or to fetch. Nothing waits for any of it: a spare without the code takes over
all the same, and compiles.
"""

from pathlib import Path

from holdfast import compiled_code
from holdfast.agent.controller_connection import ControllerConnection
from holdfast.agent.notes import note
from holdfast.agent.storage import protocol
from holdfast.agent.storage.handle import StorageHandle
from holdfast.compiled_code import CompiledHere, TakeCompiled

LOOK_S = 5.0


class CompiledHandle:
    """Of one node; `folder` is None where nothing is compiled."""

    def __init__(
        self,
        folder: Path | None,
        address: str,
        storage: StorageHandle,
        controller: ControllerConnection,
    ) -> None:
        self._folder, self._address = folder, address
        self._storage, self._controller = storage, controller
        self._stamp, self._told = "", ("", -1)  # what was told, in which connection
        self._looked_at = float("-inf")
        self._here: CompiledHere | None = None

    def look(self, now: float) -> None:
        """Often: tell what there is on each connection, and when it has changed."""
        if self._folder is None or now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        if not self._storage.pid and _holds_anything(self._folder):
            self._storage.open_once()
        known = self._stamp, self._controller.welcomes
        if self._controller.connected and known != self._told and (here := self._said()):
            self._told = known
            self._controller.answer(here)

    def _said(self) -> CompiledHere | None:
        """None where the folder cannot be used: that costs a compilation and nothing else."""
        assert self._folder is not None
        try:
            folder = compiled_code.identity(self._folder)
        except OSError as error:
            note(f"agent: compiled code is not exchanged: {self._folder}: {error.strerror}")
            self._folder = None
            return None
        machine = compiled_code.machine()
        return CompiledHere(
            folder=folder, machine=machine, address=self._address, stamp=self._stamp
        )

    def seen(self, news: protocol.CompiledSeen) -> None:
        """There is something else than before."""
        self._stamp, self._looked_at = news.stamp, float("-inf")

    def take(self, order: TakeCompiled) -> None:
        """A member has compiled what this node may need."""
        if self._folder is not None:
            self._storage.fetch(protocol.FetchCompiled(name=order.name, address=order.address))

    def fetched(self, news: protocol.CompiledFetched) -> None:
        """What has come."""
        came = f"{news.count} files, {news.size / 1e6:.1f} MB in {news.seconds:.1f} s"
        ended = f"; not all of it: {news.why}" if news.why else ""
        note(f"agent: compiled code from {news.name}: {came}{ended}")


def _holds_anything(folder: Path) -> bool:
    return any((folder / part).is_dir() for part in compiled_code.PARTS)
