"""Faults on order: answers that fail, come late, or break off."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from tests.drivers.kubernetes.cluster.http import CutError
from tests.drivers.kubernetes.cluster.refusal import RefusalError


@dataclass
class Fault:
    """What happens to the next `times` calls of a verb on a kind; "" stands for any.

    Verbs are those of Kubernetes' access rules: get, list, watch, create, update, patch, delete.
    `code` 0 with `cut` drops the connection; a watch is cut after `cut_after` lines. With `done`
    the call is carried out first, so that the client cannot know.
    """

    verb: str = ""
    plural: str = ""
    code: int = 0
    times: int = 1
    delay_s: float = 0.0
    cut: bool = False
    cut_after: int | None = None
    retry_after_s: int | None = None
    done: bool = False
    message: str = "a fault that was asked for"

    def fits(self, verb: str, plural: str) -> bool:
        """Whether this call is one of those."""
        return self.times > 0 and self.verb in ("", verb) and self.plural in ("", plural)


class Faults:
    """The faults that are still to come."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Let it happen to the next calls that fit."""
        self._waiting.append(fault)
        return fault

    def clear(self) -> None:
        """No more faults."""
        self._waiting.clear()

    def _next(self, verb: str, plural: str) -> Iterator[Fault]:
        for fault in self._waiting:
            if fault.fits(verb, plural):
                fault.times -= 1
                yield fault
                return

    async def before(self, verb: str, plural: str) -> Fault | None:
        """Suffer the next fault that fits; one that comes later is given back."""
        for fault in self._next(verb, plural):
            if fault.delay_s:
                await asyncio.sleep(fault.delay_s)
            if not fault.done:
                strike(fault)
            return fault
        return None


def strike(fault: Fault) -> None:
    """Fail as the fault says, if it says so."""
    if fault.code:
        raise RefusalError(fault.code, fault.message, retry_after_s=fault.retry_after_s)
    if fault.cut:
        raise CutError
