"""What a check has found, as its process writes it: a line of JSON each, as soon as it is known."""

import sys
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

State = Literal["ok", "failed", "skipped"]


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table.

    `digest` is `KIND=DIGEST`: results of the same kind have to have the same digest on every
    machine. Empty where there is nothing to compare.
    """

    name: str
    state: State
    found: str
    seconds: float = 0.0
    digest: str = ""
    help: str = ""
    environment: bool = False  # failed for rights or settings, which are the same on any machine

    @property
    def blames_machine(self) -> bool:
        """It has failed, and another machine might not."""
        return self.state == "failed" and not self.environment


class CheckFinding(NamedTuple):
    """What a function that checks something returns."""

    state: State
    found: str
    digest: str = ""
    help: str = ""
    environment: bool = False


def tell(name: str, check: Callable[[], CheckFinding]) -> None:
    """Run a check in this process and write what it has found. What it raises is a failure."""
    began = time.monotonic()
    try:
        finding = check()
    except Exception as error:
        words = str(error).strip().partition("\n")[0] or "no message"
        finding = CheckFinding("failed", f"{type(error).__name__}: {words}")
    seconds = round(time.monotonic() - began, 3)
    write(CheckResult(name=name, seconds=seconds, **finding._asdict()))


def write(result: CheckResult) -> None:
    """One line, at once: this process may be killed in the next check."""
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    sys.stdout.flush()


def parse(line: bytes) -> CheckResult | None:
    """A line that a check wrote; None for anything else on its standard output."""
    try:
        return msgspec.json.decode(line, type=CheckResult)
    except msgspec.MsgspecError:
        return None
