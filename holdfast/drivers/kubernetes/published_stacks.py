"""The stacks of a job's workers, checks of its spares' machines, steps that its nodes repeat, and
profiles of running workers, for whoever asks from outside: by two ConfigMaps, like a stop.

A question is an annotation on the job's ConfigMap, a word that nobody has used before; one that
begins with `native-` wants frames of C, of a rank where its number follows, with `check-` it asks
for checks, after `replay-` it says what is to be repeated, and after `profile-` what is to be
profiled, and after `trace-` which part of a trace is to be handed out. What was answered is
ConfigMap `NAME-stacks` with the same word, compressed, as much as one may have. The command line
never talks to the controller, so there is no other way.

Words stay where they are, so a new controller finds the last one: what was answered is not asked
again, and a profile of which nobody knows whether it was begun is refused.
"""

import asyncio
import gzip
import secrets
import zlib
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from holdfast.digests import StepsToRepeat
from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, ApiError, Cluster, NotFoundError
from holdfast.drivers.kubernetes.config_map import Content, binary_of, config_map
from holdfast.drivers.kubernetes.manifests.names import STACKS
from holdfast.drivers.kubernetes.manifests.request import Body
from holdfast.drivers.kubernetes.talk import Complaint, say
from holdfast.messages import ChecksReply, ReplayReply, StacksReply
from holdfast.profiles import ProfileReply, ProfileRequest, TracePart, TracePartRequest

ANSWER_BYTES = 700_000  # compressed; with base64 that is less than a mebibyte
WAIT_S = 75.0  # for all nodes to answer, or to be given up, and for the watch to tell of it
POLL_S = 0.5
CHECKS_WAIT_S = 400.0  # agents give up their checks after 300 s
ASKED, DATA = "asked", "stacks"  # keys of the ConfigMap
REPLAY_WAIT_S = 3600.0  # some rounds of groups, ten minutes each at most
PART_S = 40.0  # for a part of a trace
STAYS_S = 1.5  # what only one can answer stays for so long: parts of traces follow each other fast
# how a word begins that asks for these
CHECKS, REPLAY, PROFILE, TRACE = "check-", "replay-", "profile-", "trace-"
NATIVE = "native-"
RANK_DIGITS = 9

Ask = Callable[[Callable[[StacksReply], None]], None]
AskNative = Callable[[Callable[[StacksReply], None], int | None], None]
AskChecks = Callable[[Callable[[ChecksReply], None]], None]
Repeat = Callable[[StepsToRepeat, Callable[[ReplayReply], None]], None]
Profile = Callable[[ProfileRequest, Callable[[ProfileReply], None]], None]
HandOut = Callable[[TracePartRequest, Callable[[TracePart], None]], None]
AnyAnswer = StacksReply | ChecksReply | ReplayReply | ProfileReply | TracePart


class _Answered(NamedTuple):
    """What is to be published."""

    asked: str
    reply: AnyAnswer


class Respondents(NamedTuple):
    """Who knows the answers: `ask` has the workers looked at, `check` the machines of spares,
    `repeat` a step repeated, `profile` steps profiled, and `hand_out` parts of traces sent.
    `native`: as `ask`, with frames of C, of one rank or of all."""

    ask: Ask
    check: AskChecks
    repeat: Repeat
    profile: Profile
    hand_out: HandOut
    native: AskNative


def stacks_name(job: str) -> str:
    """Name of the ConfigMap."""
    return f"{job}-stacks"


class PublishedStacks:
    """The controller's side."""

    def __init__(self, cluster: Cluster, job: str, owner: Body, by: Respondents) -> None:
        self._cluster, self._job, self._owner, self._by = cluster, job, owner, by
        self._answers: asyncio.Queue[_Answered] = asyncio.Queue()
        self._complain = Complaint()
        self._answered = ""  # by a controller before this one
        self._earlier: str | None = ""  # the word it has found; None: it could not be seen

    async def load(self) -> None:
        """Before anything is heard: what a controller before this one was asked and has said."""
        try:
            job = await self._cluster.get(CONFIG_MAPS, f"{self._job}-job")
            self._earlier = (job["metadata"].get("annotations") or {}).get(STACKS, "")
            answer = await self._cluster.get(CONFIG_MAPS, stacks_name(self._job))
            self._answered = (answer.get("data") or {}).get(ASKED, "")
        except NotFoundError:
            return
        except ApiError as error:
            self._earlier = None
            say(f"{stacks_name(self._job)} cannot be read: {error}")

    def wanted(self, word: str) -> None:
        """Somebody asks."""
        if word == self._answered:
            return
        earlier = self._earlier in (None, word)  # unknown is the first that is heard
        self._earlier = ""

        def answer(reply: AnyAnswer) -> None:
            self._answers.put_nowait(_Answered(word, reply))

        if word.startswith(CHECKS):
            self._by.check(answer)
        elif word.startswith(REPLAY):
            self._repeat(word, answer)
        elif word.startswith(PROFILE):
            self._profile(word, answer, earlier=earlier)
        elif word.startswith(TRACE):
            self._hand_out(word, answer)
        elif word.startswith(NATIVE):
            self._by.native(answer, _rank_in(word))
        else:
            self._by.ask(answer)

    def _repeat(self, word: str, answer: Callable[[ReplayReply], None]) -> None:
        try:
            wish = msgspec.json.decode(word.removeprefix(REPLAY), type=StepsToRepeat)
        except msgspec.MsgspecError as error:
            answer(ReplayReply(refused=f"the request cannot be read: {error}"))
        else:
            self._by.repeat(wish, answer)

    def _profile(self, word: str, answer: Callable[[ProfileReply], None], *, earlier: bool) -> None:
        if earlier:
            answer(ProfileReply(refused="the controller was restarted; try again"))
            return
        try:
            wish = msgspec.json.decode(word.removeprefix(PROFILE), type=ProfileRequest)
        except msgspec.MsgspecError as error:
            answer(ProfileReply(refused=f"the request cannot be read: {error}"))
        else:
            self._by.profile(wish, answer)

    def _hand_out(self, word: str, answer: Callable[[TracePart], None]) -> None:
        try:
            wish = msgspec.json.decode(word.removeprefix(TRACE), type=TracePartRequest)
        except msgspec.MsgspecError as error:
            answer(TracePart(trace="", offset=0, why=f"the request cannot be read: {error}"))
        else:
            self._by.hand_out(wish, answer)

    async def run(self) -> None:
        """Publish what is answered, for ever."""
        while True:
            answered = await self._answers.get()
            name = stacks_name(self._job)
            packed = await asyncio.to_thread(_packed, answered.reply)
            content = Content({ASKED: answered.asked}, {DATA: packed})
            body = config_map(self._cluster, self._job, name, self._owner, content, bulk=True)
            try:
                await self._cluster.apply(body)
            except ApiError as error:
                self._complain(f"{name} cannot be published: {error}")
            else:
                self._complain("")
            if not isinstance(answered.reply, TracePart):
                await asyncio.sleep(STAYS_S)


def _packed(reply: AnyAnswer) -> bytes:
    """The smallest groups come first, so the end goes if it is too much."""
    while True:
        packed = gzip.compress(msgspec.json.encode(reply), 6, mtime=0)
        if len(packed) <= ANSWER_BYTES or not isinstance(reply, StacksReply) or not reply.groups:
            return packed
        half = reply.groups[: len(reply.groups) // 2]
        reply = msgspec.structs.replace(reply, groups=half)


def _rank_in(word: str) -> int | None:
    """Which one is meant by a word for frames of C; None: all."""
    rank, named, _ = word.removeprefix(NATIVE).partition("-")
    return int(rank) if named and rank.isdecimal() and len(rank) <= RANK_DIGITS else None


async def ask_for_stacks(
    cluster: Cluster,
    job: str,
    wait_s: float = WAIT_S,
    *,
    native: bool = False,
    rank: int | None = None,
) -> StacksReply | None:
    """The command line's side; None if nobody has answered in time. Raises `ApiError`. A controller
    that does not know of frames of C tells those of Python, of all ranks."""
    kind = NATIVE * native + f"{rank}-" * (native and rank is not None)
    reply = await _asked(cluster, job, kind + secrets.token_hex(8), wait_s)
    return reply if isinstance(reply, StacksReply) else None


async def ask_for_checks(
    cluster: Cluster, job: str, wait_s: float = CHECKS_WAIT_S
) -> ChecksReply | None:
    """Likewise."""
    reply = await _asked(cluster, job, CHECKS + secrets.token_hex(8), wait_s)
    return reply if isinstance(reply, ChecksReply) else None


async def ask_for_replay(
    cluster: Cluster, job: str, wish: StepsToRepeat, wait_s: float = REPLAY_WAIT_S
) -> ReplayReply | None:
    """Likewise."""
    reply = await _asked(cluster, job, REPLAY + msgspec.json.encode(wish).decode(), wait_s)
    return reply if isinstance(reply, ReplayReply) else None


async def ask_for_profile(
    cluster: Cluster, job: str, wish: ProfileRequest, wait_s: float = REPLAY_WAIT_S
) -> ProfileReply | None:
    """Likewise. A controller that knows no profiles takes the word for one that wants stacks."""
    reply = await _asked(cluster, job, PROFILE + msgspec.json.encode(wish).decode(), wait_s)
    if reply is None or isinstance(reply, ProfileReply):
        return reply
    return ProfileReply(refused="its controller is of a version of Holdfast without profiles")


async def ask_for_trace_part(
    cluster: Cluster, job: str, wish: TracePartRequest, wait_s: float = PART_S
) -> TracePart | None:
    """Likewise."""
    reply = await _asked(cluster, job, TRACE + msgspec.json.encode(wish).decode(), wait_s)
    if reply is None or isinstance(reply, TracePart):
        return reply
    why = "its controller is of a version of Holdfast that sends no traces"
    return TracePart(trace=wish.part.trace, offset=wish.part.offset, why=why)


async def _asked(cluster: Cluster, job: str, word: str, wait_s: float) -> AnyAnswer | None:
    wish = {"metadata": {"annotations": {STACKS: word}}}
    await cluster.patch(CONFIG_MAPS, f"{job}-job", wish)
    try:
        async with asyncio.timeout(wait_s):
            while (reply := await _answer(cluster, job, word)) is None:
                await asyncio.sleep(POLL_S)
            return reply
    except TimeoutError:
        return None


async def _answer(cluster: Cluster, job: str, word: str) -> AnyAnswer | None:
    try:
        body = await cluster.get(CONFIG_MAPS, stacks_name(job))
    except NotFoundError:
        return None
    if (body.get("data") or {}).get(ASKED) != word:
        return None
    try:
        packed = binary_of(body)[DATA]
        found: AnyAnswer = msgspec.json.decode(gzip.decompress(packed), type=AnyAnswer)
    except (OSError, EOFError, ValueError, KeyError, zlib.error):  # somebody else wrote into it
        return None
    return found
