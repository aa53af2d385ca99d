"""Gets the code of a version from the controller, where nodes and the command line share no folder.

A part at a time, and the next one when that has come, so that a bundle never fills the connection
on which orders arrive. What is lost with a connection is asked for again. A new controller may have
to find the bundle first; one that cannot says why.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from holdfast import bundles
from holdfast.messages import AskCode, CodePart

ANSWER_S = 5.0  # for a part
AGAIN_S = 1.0  # between two questions for what the controller does not have yet


class CodeDelivery:
    """Of one job. `folder` is where bundles lie."""

    def __init__(self, folder: Path, ask: Callable[[AskCode], None]) -> None:
        self._folder, self._ask = folder, ask
        self._waited: dict[tuple[str, int], asyncio.Future[CodePart]] = {}

    def take(self, part: CodePart) -> None:
        """It has come."""
        waiting = self._waited.pop((part.code, part.offset), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(part)

    async def fetch(self, code: str) -> str:
        """Have this bundle here, whenever there is a controller that has it; why there never will
        be, or empty. Raises `OSError`."""
        data = bytearray()
        while code and not self._is_here(code):
            part = await self._part(code, len(data))
            if part.why or part.size > bundles.MOST_BYTES:
                return part.why or f"a bundle of {part.size} bytes is too large"
            data += part.data
            if not part.data:
                await asyncio.sleep(AGAIN_S)
            elif len(data) >= part.size and bundles.digest(data) != code:
                return f"the bundle of code has SHA-256 {bundles.digest(data)}, not {code}"
            elif len(data) >= part.size:
                await asyncio.to_thread(bundles.keep, bytes(data), self._folder)
        return ""

    def _is_here(self, code: str) -> bool:
        return bundles.packed(self._folder, code).exists()

    async def _part(self, code: str, offset: int) -> CodePart:
        """Asked for until it comes: the connection may be gone, and the question with it."""
        while True:
            loop = asyncio.get_running_loop()
            waiting = self._waited.setdefault((code, offset), loop.create_future())
            self._ask(AskCode(code=code, offset=offset))
            done, _ = await asyncio.wait((waiting,), timeout=ANSWER_S)
            if done:
                return waiting.result()
