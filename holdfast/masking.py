"""Takes secrets out of text before it leaves the node: pure.

What counts as one: the values of environment variables whose names look secret, in every way in
which they are usually written; passwords in URLs; what follows a name like `password=`; and tokens
that show by their form what they are. A number after a name with `token` is none: training scripts
print those all the time. What is masked reads `***`, so that the rest stays readable.

A short value (fewer than `VALUE_CHARS` characters) of a secret variable is not searched for: `true`
and `1` are everywhere. Text has to be masked before it is cut: half a secret has no form any more.
"""

import json
import re
from collections.abc import Callable, Mapping
from urllib.parse import quote, quote_plus

MASK = "***"
VALUE_CHARS = 6
SECRET_NAME = re.compile(
    r"secret|token|passw|passphrase|credential|cookie|api_?key|access_?key|private_?key"
    r"|(?:^|_)(?:auth|key|pass|pat|dsn)(?:$|_)|_pwd$",
    re.IGNORECASE,
)
PLACE = re.compile(r"_(?:file|path|dir|sock)$", re.IGNORECASE)  # where one is

_NAME = r"(?:passw(?:or)?d|passwd|passphrase|pwd|secret|credentials?|api[_-]?key|access[_-]?key"
_VALUE = r"""("[^"\n]*"|'[^'\n]*'|[^\s'",;&}\])]+)"""
_SIGN = r"""(["']?\s*[:=]\s*)"""
_PLAIN = r"(?:[\d.,_eE+-]{1,15}|true|false|none|null)(?:[\s,;)}\]]|$)"  # no secret
_FORMS = (
    r"\bhf_[A-Za-z0-9]{16,}",  # Hugging Face
    r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}",  # AWS
    r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}",
    r"\bsk-[\w-]{16,}|\bxox[abeprs]-[\w-]{10,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{10,}",
    r"\bpypi-[\w-]{16,}|\bnpm_[A-Za-z0-9]{20,}",
    r"\beyJ[\w-]{5,}\.[\w-]{8,}(?:\.[\w-]*)?",  # JSON web tokens
)
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
            r"|\A[\w+/=\s]*-----END [A-Z ]*PRIVATE KEY-----",
            re.DOTALL,
        ),
        MASK,
    ),
    (re.compile(r"(://)[^\s/:@]{12,300}(?=:\S{1,300}@)"), rf"\1{MASK}"),  # a token as the user
    (re.compile(r"(://[^\s/:@]{0,300}):\S{1,300}@"), rf"\1:{MASK}@"),
    (re.compile(r"(://)[^\s/:@]{8,300}@"), rf"\1{MASK}@"),
    (re.compile(r"""(authorization["']?\s*[:=]\s*["']?)[^"'\n,}]+""", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"\b(bearer\s+)[\w.~+/=:-]{6,}", re.IGNORECASE), rf"\1{MASK}"),
    (
        re.compile(
            r"([?&][\w.-]{0,40}(?:token|key|secret|sig|password|credential|auth)[\w.-]{0,40}=)"
            r"[^&\s'\"]+",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(rf"({_NAME}|private[_-]?key)[\w.-]{{0,40}}){_SIGN}{_VALUE}", re.IGNORECASE),
        rf"\1\2{MASK}",
    ),
    (
        re.compile(rf"(token\w{{0,40}}){_SIGN}(?!{_PLAIN}){_VALUE}", re.IGNORECASE),
        rf"\1\2{MASK}",
    ),
    (re.compile("|".join(_FORMS)), MASK),
)


def masker(environ: Mapping[str, str]) -> Callable[[str], str]:
    """What masks a text in a process with this environment."""
    values = {form for name, text in environ.items() for form in _forms_of(name, text)}
    longest_first = sorted(values, key=len, reverse=True)
    known = re.compile("|".join(map(re.escape, longest_first))) if values else None

    def masked(text: str) -> str:
        if known is not None:
            text = known.sub(MASK, text)
        for pattern, instead in _RULES:
            text = pattern.sub(instead, text)
        return text

    return masked


def _forms_of(name: str, value: str) -> set[str]:
    """How the value of a secret variable may be written."""
    if not SECRET_NAME.search(name) or PLACE.search(name):
        return set()
    texts = {value, *value.splitlines()}
    written = {
        form
        for text in texts
        for form in (
            text, text.strip(), quote(text), quote(text, safe=""), quote_plus(text),
            json.dumps(text)[1:-1], repr(text)[1:-1],
        )
    }  # fmt: skip
    return {form for form in written if len(form.strip()) >= VALUE_CHARS}
