"""`holdfast lint`: the traps in manifests, ours or anybody's."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from holdfast.cli.output import AsJson, count, json_result, result, styled
from holdfast.errors import ExitStatus

if TYPE_CHECKING:
    from holdfast.drivers.kubernetes.lint import Finding
    from holdfast.drivers.kubernetes.lint.spots import Version

FILE_BYTES_MAX = 64 * 1024 * 1024


class Found(NamedTuple):
    """What was found in one file, and how many objects it has."""

    file: str
    objects: int
    findings: "list[Finding]"


def lint(
    files: Annotated[
        list[str],
        typer.Argument(
            help="YAML with Kubernetes objects; `-` is standard input. Each file is checked as "
            "one complete job.",
            metavar="FILE...",
            show_default=False,
        ),
    ],
    kubernetes_version: Annotated[
        str | None,
        typer.Option(help="Version of Kubernetes, as in 1.37, for version-dependent checks."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check manifests for errors that no schema detects; exit status 2 if there is one."""
    from holdfast.cli.render import version as known

    version = known(kubernetes_version) if kubernetes_version is not None else None
    found = [_looked_at(file, version) for file in files]
    if as_json:
        json_result(_object(found))
    else:
        _show(found)
    return ExitStatus.USAGE if _counted(found, "error") else ExitStatus.OK


def _looked_at(file: str, version: "Version | None") -> Found:
    from holdfast.drivers.kubernetes.lint import lint as look
    from holdfast.drivers.kubernetes.lint.read import manifests
    from holdfast.spec import reading

    name = reading.named(Path(file))
    bodies = manifests(_text(file, name), name)
    return Found(name, len(bodies), look(bodies, version))


def _text(file: str, name: str) -> str:
    from holdfast.drivers.kubernetes.lint.read import unreadable
    from holdfast.spec import reading

    try:
        return reading.file_text(Path(file), FILE_BYTES_MAX)
    except reading.UnreadableError as exc:
        raise unreadable(name, str(exc)) from None


def _counted(found: list[Found], level: str) -> int:
    return sum(finding.level == level for one in found for finding in one.findings)


def _object(found: list[Found]) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "error_count": _counted(found, "error"),
        "warning_count": _counted(found, "warning"),
        "findings": [{"file": one.file, **asdict(f)} for one in found for f in one.findings],
    }


def _show(found: list[Found]) -> None:
    for one in found:
        for text in told(one.file, one.findings):
            result(text)
    errors, warnings = _counted(found, "error"), _counted(found, "warning")
    objects = count(sum(one.objects for one in found), "object")
    result(f"{objects}: {count(errors, 'error')}, {count(warnings, 'warning')}")


def told(file: str, findings: "Iterable[Finding]") -> list[str]:
    """Findings in the form of every error, errors first; what many objects share is told once."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in sorted(findings, key=lambda f: f.level != "error"):
        key = (finding.slug, finding.kind, finding.path, finding.what)
        alike.setdefault(key, []).append(finding)
    return [_told(file, same[0], len(same) - 1) for same in alike.values()]


def _told(file: str, finding: "Finding", others: int) -> str:
    more = f" (and {others} more)" if others else ""
    head = styled(
        f"{finding.level}[{finding.slug}]", "red" if finding.level == "error" else "yellow"
    )
    place = f" {finding.path}" if finding.path else ""
    what = f"{file}: {finding.kind}/{finding.name}{more}{place}: {finding.what}"
    return f"{head}: {what}\n  why: {finding.why}\n  help: {finding.help}"
