"""Whether two machines have computed the same bits: digests of the same kind, compared."""

from collections.abc import Sequence

import msgspec

from holdfast.checks.outcome import CheckResult


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `holdfast check --json` prints, as far as it is compared."""

    machine: str
    checks: tuple[CheckResult, ...]


def compared(here: Sequence[CheckResult], where: str, there: Sequence[CheckResult]) -> CheckResult:
    """The results of this machine beside those of another one."""
    mine, theirs = digests(here), digests(there)
    both = sorted(mine.keys() & theirs.keys())
    name = f"as in {where}"
    if not both:
        why = "no result was computed by the same kind of device with the same PyTorch"
        return CheckResult(name=name, state="skipped", found=why)
    wrong = sorted({check for check, kind in both if mine[check, kind] != theirs[check, kind]})
    if wrong:
        return CheckResult(
            name=name,
            state="failed",
            found=f"other bits: {', '.join(wrong)}",
            help="one of the two machines produces wrong results: compare each with a third one",
        )
    return CheckResult(name=name, state="ok", found=f"the same bits in {len(both)} results")


def digests(results: Sequence[CheckResult]) -> dict[tuple[str, str], str]:
    """Of what was computed, by check and kind of device."""
    found = {}
    for one in results:
        for part in filter(None, one.digest.split(";")):
            kind, _, digest = part.rpartition("=")
            found[one.name, kind] = digest
    return found
