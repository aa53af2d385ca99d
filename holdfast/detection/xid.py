"""NVIDIA's XID errors: what each asks for, as data, and which of a burst decides.

The driver numbers what goes wrong with a GPU, and one fault often gives several numbers within
seconds. So XIDs of one GPU are one burst until three minutes of silence; the first is usually the
cause. XID 154 carries the recovery action itself and overrides what the table says of the others.
Sources: NVIDIA's XID catalogue (docs.nvidia.com/deploy/xid-errors), Ampere and later.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from holdfast.events import Severity

QUIET_S = 180.0  # without another XID: the burst is over
VERDICT = 154  # "GPU recovery action changed"
NEVER_THE_CAUSE = 45  # another error's clean-up

LINE = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<device>[0-9A-Fa-f:.]+)\): (?P<number>\d+)(?:, )?")
ACTION = re.compile(r"recovery action changed from 0x[0-9a-f]+ \(.*?\) to 0x(?P<code>[0-9a-f]+)")


class Remedy(StrEnum):
    """What makes the GPU usable again; the value is what a person is told to do."""

    NOTHING = "nothing: the GPU is fine"
    RESTART = "restart the application; if the error recurs on this GPU only, run dcgmi diag -r 3"
    RESET = "drain the machine and reset the GPU: nvidia-smi --gpu-reset"
    REBOOT = "drain and reboot the machine; if the error returns, have the GPU replaced"
    REPLACE = "reset the GPU, then have it replaced (RMA)"
    LINK = "check NVLink and the GPU at its other end: nvidia-smi nvlink --status"
    DRAIN = "let no new work use peer-to-peer on this GPU"
    UNKNOWN = "look the number up: docs.nvidia.com/deploy/xid-errors"


class Xid(NamedTuple):
    """One number: what it means and what it asks for."""

    meaning: str  # by its name in NVIDIA's catalogue, so that people find it
    remedy: Remedy


NOTHING, RESTART, RESET, REBOOT, REPLACE, LINK, DRAIN, UNKNOWN = Remedy

XIDS: dict[int, Xid] = {
    13: Xid("Graphics Engine Exception (mostly an invalid access by a kernel)", RESTART),
    31: Xid("GPU memory page fault (mostly an illegal address of the application)", RESTART),
    32: Xid("Invalid or corrupted push buffer stream", RESTART),
    43: Xid("GPU stopped processing (the application was stopped, the GPU is fine)", NOTHING),
    45: Xid("Preemptive cleanup, due to previous errors", NOTHING),
    46: Xid("GPU stopped processing", RESET),
    48: Xid("Double Bit ECC Error", RESET),
    62: Xid("Internal micro-controller halt", RESET),
    63: Xid("GPU memory remapping event (a row is to be remapped)", NOTHING),
    64: Xid("GPU memory remapping failure (a row could not be remapped)", REPLACE),
    66: Xid("Illegal access by driver", NOTHING),
    67: Xid("Illegal access by driver", NOTHING),
    69: Xid("Graphics Engine class error", RESTART),
    74: Xid("NVLink Error", LINK),
    79: Xid("GPU has fallen off the bus", REBOOT),
    92: Xid("High single-bit ECC error rate", NOTHING),
    93: Xid("Non-fatal violation of provisioned InfoROM wear limit", NOTHING),
    94: Xid("Contained memory error (uncorrectable, in one application)", RESTART),
    95: Xid("Uncontained memory error (uncorrectable, in any application)", RESET),
    109: Xid("Context Switch Timeout Error", RESET),
    110: Xid("Security Fault Error", RESET),
    119: Xid("GSP RPC Timeout (the GPU's system processor)", RESET),
    120: Xid("GSP Error (the GPU's system processor); power-cycle the machine if it stays", RESET),
    121: Xid("C2C Error (corrected, of the chip-to-chip link)", NOTHING),
    136: Xid("Link Training Failed", RESET),
    140: Xid("ECC Unrecovered Error", RESET),
    143: Xid("GPU Initialization Error", RESET),
    144: Xid("NVLINK: SAW Error", LINK),
    145: Xid("NVLINK: RLW Error", LINK),
    146: Xid("NVLINK: TLW Error", LINK),
    147: Xid("NVLINK: TREX Error", LINK),
    148: Xid("NVLINK: NVLPW_CTRL Error", LINK),
    149: Xid("NVLINK: NETIR Error", RESET),
    150: Xid("NVLINK: MSE Error", LINK),
    155: Xid("NVLINK: SW Defined Error", RESET),
    156: Xid("Resource Retirement Event", RESET),
    158: Xid("GPU Fatal Timeout", RESET),
}
"""By number. What is not listed is told and acted upon by nobody."""

ACTIONS: dict[int, Remedy] = {
    0: NOTHING,
    1: RESET,
    2: REBOOT,
    3: DRAIN,
    4: RESET,
    5: RESET,
    6: RESET,
    7: REBOOT,
}
"""Recovery actions of XID 154 and of NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, by their codes."""

SEVERITY: dict[Remedy, Severity] = {
    NOTHING: Severity.OK,
    RESTART: Severity.WARN,
    UNKNOWN: Severity.WARN,
    DRAIN: Severity.WARN,
    LINK: Severity.ALERT,
    RESET: Severity.FATAL,
    REBOOT: Severity.FATAL,
    REPLACE: Severity.FATAL,
}
ORDER = (Severity.OK, Severity.WARN, Severity.ALERT, Severity.FATAL)


def is_fatal(remedy: Remedy) -> bool:
    """Whether nothing should train on the GPU before that is done."""
    return SEVERITY[remedy] is Severity.FATAL


class XidError(NamedTuple):
    """One line of the kernel log, or one event of NVML."""

    device: str  # PCI address, as `address_of` writes it
    number: int
    message: str = ""


def parse(line: str) -> XidError | None:
    """The XID that a line of the kernel log tells; None: none."""
    found = LINE.search(line)
    if found is None:
        return None
    said = line[found.end() :].strip()
    return XidError(address_of(found["device"]), int(found["number"]), said)


def address_of(bus: str) -> str:
    """A PCI address as the kernel log writes it: NVML has longer domains and capitals."""
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}"


def remedy_of(error: XidError) -> Remedy:
    """What one XID asks for by itself."""
    if error.number == VERDICT:
        found = ACTION.search(error.message)
        return ACTIONS.get(int(found["code"], 16), UNKNOWN) if found else UNKNOWN
    known = XIDS.get(error.number)
    return known.remedy if known is not None else UNKNOWN


class Burst(NamedTuple):
    """XIDs of one GPU without three minutes of silence between them."""

    device: str
    errors: tuple[XidError, ...]
    last_at: float
    earlier: int = 0  # bursts of this GPU before that had begun with the same number

    @property
    def cause(self) -> XidError:
        """The first that can be one."""
        causes = [e for e in self.errors if e.number not in (VERDICT, NEVER_THE_CAUSE)]
        return causes[0] if causes else self.errors[0]

    @property
    def remedy(self) -> Remedy:
        """The driver's own verdict if it gave one, else the gravest of the table."""
        verdicts = [remedy_of(e) for e in self.errors if e.number == VERDICT]
        if verdicts:
            return verdicts[-1]
        return max(map(remedy_of, self.errors), key=lambda r: ORDER.index(SEVERITY[r]))

    @property
    def severity(self) -> Severity:
        """What follows from it."""
        return SEVERITY[self.remedy]

    @property
    def advice(self) -> str:
        """What to do."""
        again = self.earlier and self.remedy is Remedy.RESTART
        return "run dcgmi diag -r 3: the same error recurred" if again else str(self.remedy)

    @property
    def words(self) -> str:
        """One sentence without its full stop."""
        first, known = self.cause, XIDS.get(self.cause.number)
        meaning = known.meaning if known is not None else first.message or "unknown"
        others = dict.fromkeys(e.number for e in self.errors if e.number != first.number)
        more = f"; then XID {', '.join(map(str, others))}" if others else ""
        again = f", {self.earlier + 1} times" if self.earlier else ""
        return f"GPU {self.device}: XID {first.number}{again}, {meaning}{more}"


def joined(burst: Burst | None, errors: Sequence[XidError], now: float) -> Burst:
    """The burst of a GPU with these errors of it, which may be a new one."""
    assert errors, "a burst has at least one error"
    if burst is None or now - burst.last_at > QUIET_S:
        earlier = 0
        fresh = Burst(errors[0].device, tuple(errors), now)
        if burst is not None and burst.cause.number == fresh.cause.number:
            earlier = burst.earlier + 1
        return fresh._replace(earlier=earlier)
    return burst._replace(errors=(*burst.errors, *errors)[:64], last_at=now)
