"""Find the exception that ended a worker in what it printed.

The last uncaught traceback counts, with the exceptions it is chained to. Its type and message are
those Python prints last, because that is the one that was not caught. Its place is the innermost
line of the user's own code: in the traceback of a data loader's process or in the first member of
an exception group where there is one (they are closest to the bug), else in the exception itself,
else in the one that caused it, nearest first.

Reading text is the fallback for scripts without the library: with it the worker writes down the
exception itself.
"""

import re
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

from holdfast.events import WorkerError

PREFIX = re.compile(r"(?:\[[A-Za-z_]*\d+\]:(?: (?=\S| {2}|$))?)+")  # torch's and torchrun's ranks
HEADER = re.compile(r"^(Original |Exception Group )?Traceback \(most recent call last\):$")
FRAME = re.compile(r'^ +File "(.+)", line (\d+)(?:, in .*)?$')
RAISES = re.compile(r"\braise [A-Za-z_]")
EXCEPTION = re.compile(r"^([A-Za-z_][\w.<>]*)(?::(?: (.*))?)?$")
MARGIN = re.compile(r"^ *(?:\+(?!-)|\|) ?")
MEMBER = re.compile(r"^ *\+[-+]+ (?:\d+|\.\.\.) -+$")
GROUP_END = re.compile(r"^ *\+-+$")
LIBRARY = re.compile(
    r"/(?:site|dist)-packages/|/lib(?:64)?/python3\.\d+/|^<|/holdfast/(?:train|agent|checkpoint)/"
)
NOT_FATAL = "Exception ignored in"
IN_THREAD = ("Exception in thread", "Process ")
OTHER = re.compile(r"^\[[WEIF]\d{4} |^terminate called|^\S+\.py:\d+: \w*Warning: ")  # not Python's
HANDLING = "During handling of the above exception, another exception occurred:"
CHAINS = ("The above exception was the direct cause of the following exception:", HANDLING)
SYNTAX = ("SyntaxError", "IndentationError", "TabError")
MESSAGE_LINES = 80  # torchrun has 7 of each rank that failed, and what failed first at the end


class Frame(NamedTuple):
    """One line of code in a traceback."""

    file: str
    line: int


class TracebackKind(Enum):
    """Where a traceback stands in what Python printed."""

    PLAIN = auto()
    ORIGINAL = auto()  # inside the message of another, from another process
    MEMBER = auto()  # of an exception group


class Raised(NamedTuple):
    """One exception with its traceback; lines `first` to `last` (exclusive) of the text."""

    kind: TracebackKind
    type: str
    message: str
    frames: tuple[Frame, ...]
    first: int
    last: int
    chained: bool  # to the one before it
    handling: bool  # that one: it was not raised on purpose from it
    thread: bool


def parse_traceback(text: str) -> WorkerError | None:
    """The exception that ended the worker that printed `text`; None if there is none in it.

    Exceptions that Python only mentions ("Exception ignored in") do not count, those that ended a
    thread only if there is no other.
    """
    lines, chain = _last_chain(text)
    if not chain:
        return None
    final = [r for r in chain if r.kind is TracebackKind.PLAIN][-1:] or chain[:1]
    place = _place(chain)
    return WorkerError(
        type=final[0].type,
        message=final[0].message,
        file=place.file,
        line=place.line,
        traceback="\n".join(lines[chain[0].first : chain[-1].last]).rstrip() + "\n",
    )


def raised_in(text: str) -> list[Raised]:
    """Every exception of the last traceback, in the order Python prints them."""
    return _last_chain(text)[1]


def interrupts_itself(error: WorkerError) -> bool:
    """Whether a statement of the user's own code raised this KeyboardInterrupt, as its traceback
    shows: then nobody has sent SIGINT, though Python ends the process as if somebody had."""
    lines = error.traceback.splitlines()
    frames = [(at, found) for at, line in enumerate(lines) if (found := FRAME.match(line))]
    if error.type != "KeyboardInterrupt" or not frames:
        return False
    at, innermost = frames[-1]
    source = "\n".join(line for line in lines[at + 1 :] if line.startswith(" "))
    return not is_library(innermost.group(1)) and RAISES.search(source) is not None


def is_library(file: str) -> bool:
    """Whether a file is not the user's own: installed, of Python itself, or ours."""
    return LIBRARY.search(file) is not None


def _last_chain(text: str) -> tuple[list[str], list[Raised]]:
    lines = _of_one_rank(text.replace("\0", "").splitlines())  # torch prints one after a SIGBUS
    found = list(_tracebacks(lines)) or list(_bare_syntax_error(lines))
    fatal = [r for r in found if not r.thread] or found
    start = max((i for i, r in enumerate(fatal) if _starts(r)), default=0)
    return lines, fatal[start:]


def _starts(raised: Raised) -> bool:
    return raised.kind is TracebackKind.PLAIN and not raised.chained


def _of_one_rank(lines: Sequence[str]) -> list[str]:
    """The lines of the rank whose traceback is last, without their prefix."""
    split = [_split(line) for line in lines]
    headers = [p for p, rest in split if HEADER.match(MARGIN.sub("", rest))]
    wanted = headers[-1] if headers else None
    return [rest for prefix, rest in split if wanted in (None, prefix) or not (prefix + rest)]


def _split(line: str) -> tuple[str, str]:
    found = PREFIX.match(line)
    return (found.group().rstrip(), line[found.end() :]) if found else ("", line)


def _tracebacks(lines: Sequence[str]) -> Iterator[Raised]:
    """Every complete traceback that is not merely mentioned, in order."""
    member, before = False, 0
    for at, line in enumerate(lines):
        bare = MARGIN.sub("", line)
        header = HEADER.match(bare.strip() if member else bare)
        alone = member and at > 0 and MEMBER.match(lines[at - 1]) and EXCEPTION.match(bare.strip())
        if line in CHAINS and (bare_one := _without_traceback(lines, at, before)):
            yield bare_one
            before = bare_one.last
        elif MEMBER.match(line):
            member = True
        elif GROUP_END.match(line):
            member = False
        elif header or alone:
            raised = _raised(lines, at, before, _kind(header, member))
            if raised is not None and not _mentioned(lines, at):
                yield raised
                before = raised.last


def _without_traceback(lines: Sequence[str], at: int, before: int) -> Raised | None:
    """The exception above the link in line `at` of which Python prints no traceback, because its
    library has dropped that (huggingface_hub does); None if the one above has been read."""
    for first in range(at - 1, max(before, at - MESSAGE_LINES) - 1, -1):
        line = lines[first]
        if line.startswith(" ") or (not line.strip() and first < at - 1):
            return None
        found = EXCEPTION.match(line)
        if found is None:
            continue
        if first > 0 and lines[first - 1].startswith(" "):
            return None
        links = _links(lines[before:first])
        said = "\n".join([found.group(2) or "", *lines[first + 1 : at]]).rstrip()
        kind, handling = TracebackKind.PLAIN, HANDLING in links
        return Raised(
            kind, found.group(1), said, (), first, at, bool(links), handling, thread=False
        )
    return None


def _links(between: Sequence[str]) -> list[str]:
    return [chain for chain in CHAINS if any(chain in line for line in between)]


def _kind(header: re.Match[str] | None, member: bool) -> TracebackKind:
    if member:
        return TracebackKind.MEMBER
    original = header is not None and header.group(1) == "Original "
    return TracebackKind.ORIGINAL if original else TracebackKind.PLAIN


def _mentioned(lines: Sequence[str], at: int) -> bool:
    return at > 0 and lines[at - 1].startswith(NOT_FATAL)


def _raised(lines: Sequence[str], first: int, before: int, kind: TracebackKind) -> Raised | None:
    """The exception whose traceback begins at line `first`; None if the text ends too early."""
    in_group = "|" in lines[first][:12] or "+" in lines[first][:12]
    margin = _margin(lines[first]) if in_group else 0
    at = first if not HEADER.match(lines[first][margin:]) else first + 1
    frames = []
    while at < len(lines) and lines[at][margin:].startswith(" "):
        if found := FRAME.match(lines[at][margin:]):
            frames.append(Frame(found.group(1), int(found.group(2))))
        at += 1
    found = EXCEPTION.match(lines[at][margin:]) if at < len(lines) else None
    if found is None:
        return None
    last = _end_of_message(lines, at + 1, margin)
    more = [line[margin:] for line in lines[at + 1 : last]]
    links = _links(lines[before:first])
    return Raised(
        kind=kind,
        type=found.group(1),
        message="\n".join([found.group(2) or "", *more]).rstrip(),
        frames=tuple(frames),
        first=first,
        last=last,
        chained=bool(links),
        handling=HANDLING in links,
        thread=first > 0 and lines[first - 1].startswith(IN_THREAD),
    )


def _margin(line: str) -> int:
    found = MARGIN.match(line)
    return found.end() if found else 0


def _end_of_message(lines: Sequence[str], at: int, margin: int) -> int:
    """Messages may have several lines; a blank one, or anything we know, ends them."""
    stop = min(len(lines), at + MESSAGE_LINES)
    while at < stop and _continues(lines[at], margin):
        at += 1
    return at


def _continues(line: str, margin: int) -> bool:
    if MEMBER.match(line) or GROUP_END.match(line):
        return False
    rest = line[margin:]
    known = HEADER.match(MARGIN.sub("", rest)) or OTHER.match(rest)
    return bool(rest.strip()) and not known and not rest.startswith((NOT_FATAL, *IN_THREAD))


def _bare_syntax_error(lines: Sequence[str]) -> Iterator[Raised]:
    """A script that cannot be compiled: Python prints no header then."""
    for at in range(len(lines) - 1, 0, -1):
        found = EXCEPTION.match(lines[at])
        if found is None or found.group(1) not in SYNTAX:
            continue
        first = at
        while first > 0 and lines[first - 1].startswith(" "):
            first -= 1
            if frame := FRAME.match(lines[first]):
                place = Frame(frame.group(1), int(frame.group(2)))
                message = found.group(2) or ""
                yield Raised(
                    TracebackKind.PLAIN,
                    found.group(1),
                    message,
                    (place,),
                    first,
                    at + 1,
                    False,
                    False,
                    False,
                )
                return


def _place(chain: Sequence[Raised]) -> Frame:
    closest = [r for r in chain if r.kind is not TracebackKind.PLAIN]
    nearest = [*closest, *reversed([r for r in chain if r.kind is TracebackKind.PLAIN])]
    if nearest[0].type in SYNTAX and nearest[0].frames:
        return nearest[0].frames[-1]  # where the text is wrong, whoever compiles it
    own = (f for r in nearest for f in reversed(r.frames) if not is_library(f.file))
    anywhere = (f for r in nearest for f in reversed(r.frames))
    return next(own, None) or next(anywhere, None) or Frame("", 0)
