"""The pages on known problems: the reference, and the guide with introductions by hand.

`troubleshooting.template.md` has lines `{{known SLUG ...}}`, each of which becomes these problems
with what they look like, and `{{all}}`, a table of every one. What they look like are the excerpts
that the tests of the knowledge base find them by.
"""

import re
from pathlib import Path

from docs.markdown import prose, table
from holdfast.diagnosis.signatures import GROUPS, SIGNATURES, Signature
from tests.diagnosis.excerpts import THREAD, excerpts

TEMPLATE = Path(__file__).parent / "troubleshooting.template.md"
KNOWN = re.compile(r"^\{\{known (.+)\}\}$", re.MULTILINE)
EXCERPT_CHARS = 160


def guide() -> str:
    """The whole page. Raises `KeyError` for a problem that is not known."""
    text = KNOWN.sub(lambda found: _problems(found[1].split()), TEMPLATE.read_text())
    return text.replace("{{count}}", str(len(SIGNATURES))).replace("{{all}}", _all())


def _problems(slugs: list[str]) -> str:
    seen = _excerpts()
    return "\n".join(_problem(SIGNATURES[slug], seen[slug]) for slug in slugs)


def _problem(one: Signature, seen: str) -> str:
    link = f"[`{one.slug}`](../reference/known-problems.md#{one.slug})"
    return f"- {link} ({one.blame}): {prose(f'{one.cause} {one.remedy}')}\n  `{seen}`"


def _excerpts() -> dict[str, str]:
    """The first line of the first of each."""
    return {
        slug: _cut(found[0].lines[0].strip().replace("`", "'"))
        for slug, found in excerpts().items()
    }


def _cut(line: str) -> str:
    return line if len(line) <= EXCERPT_CHARS else f"{line[:EXCERPT_CHARS]}..."


def _all() -> str:
    seen = _excerpts()
    parts = []
    for title, group in GROUPS.items():
        rows = [(f"`{one.slug}`", f"`{seen[one.slug]}`", one.cause) for one in group]
        parts.append(f"#### {title}\n\n{table(('slug', 'looks like', 'cause'), rows)}")
    return "\n\n".join(parts)


def guide_notice(name: str) -> str:
    """Where such a guide comes from."""
    source = f"docs/{name.removesuffix('.md')}.template.md"
    return f"<!-- Written by docs/generate.py from {source}. Change that, not this page. -->\n"


def known_problems() -> str:
    """What `holdfast explain` finds in logs."""
    parts = [
        f"## {title}\n\n" + "\n\n".join(_in_full(one) for one in group)
        for title, group in GROUPS.items()
    ]
    return f"""# Known problems

`holdfast explain < train.log` (or `kubectl logs POD | holdfast explain -`) finds these in anybody's
log, the likeliest cause first; `holdfast why` does so in what the rank that failed first has
printed. *Consequence* means that another rank has failed before: look there.

{chr(10).join(parts)}
"""


def _in_full(one: Signature) -> str:
    cause = prose(f"*{one.blame.value.capitalize()}.* {one.cause}")
    threads = [e.source for e in excerpts()[one.slug] if THREAD.fullmatch(e.source)]
    seen = f"\n\nSeen in {', '.join(threads)}." if threads else ""
    return f"### {one.slug}\n\n{cause}\n\n{prose(one.remedy)}{seen}"
