"""Hears what people ask of a job from outside: to stop, to train on another number of nodes, or for
the stacks of its workers, by an annotation on its ConfigMap.

The one object is watched, so that a wish is heard at once, and looked at every `LOOK_S` besides:
whatever stands between us and the API may hold a watch back, or answer in its place. A wish waits
while no controller runs. What cannot be read is said once, and heard when it can be.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, ApiError, Change, Cluster
from holdfast.drivers.kubernetes.manifests.names import SCALE, STACKS, STOP
from holdfast.drivers.kubernetes.talk import say
from holdfast.drivers.kubernetes.watch import follow

LOOK_S = 5.0
CALL_S = 5.0  # for one look: a connection that is cut may hang for longer
BY, SCALED_BY = "holdfast stop", "holdfast scale"
OnWish = Callable[[str, bool], None]


class _Meta(msgspec.Struct, frozen=True):
    annotations: dict[str, str] | None = None


class _Map(msgspec.Struct, frozen=True):
    """Of a ConfigMap only what may carry a wish."""

    metadata: _Meta

    @property
    def wish(self) -> str:
        return (self.metadata.annotations or {}).get(STOP, "")

    @property
    def stacks(self) -> str:
        return (self.metadata.annotations or {}).get(STACKS, "")

    @property
    def scale(self) -> str:
        return (self.metadata.annotations or {}).get(SCALE, "")


class Wishes:
    """Calls `on_wish(by, now)` once for every new wish to stop, also for one that is there already,
    `on_stacks` with each new word of somebody who wants stacks, and `on_scale(by, nodes)` with each
    new number of nodes."""

    def __init__(
        self,
        cluster: Cluster,
        job: str,
        on_wish: OnWish,
        on_stacks: Callable[[str], None] = lambda _word: None,
        on_scale: Callable[[str, int], None] = lambda _by, _nodes: None,
    ) -> None:
        self._cluster, self._on_wish, self._on_stacks = cluster, on_wish, on_stacks
        self._on_scale = on_scale
        self._name = f"{job}-job"
        self._heard = self._heard_stacks = self._heard_scale = ""
        self._news = 0  # how often the watch has told something
        self._troubled = False

    async def hear(self) -> None:
        """For ever."""
        await asyncio.gather(self._watch(), self._look())

    async def _watch(self) -> None:
        await follow(
            self._cluster, CONFIG_MAPS, _Map, "", self._listed, self._changed, name=self._name
        )

    def _listed(self, found: Sequence[_Map]) -> None:
        for body in found:
            self._told(body)

    def _changed(self, change: Change[_Map]) -> None:
        if change.type != "DELETED":
            self._told(change.object)

    def _told(self, body: _Map) -> None:
        self._news += 1
        self._hear(body)

    async def _look(self) -> None:
        while True:
            before = self._news
            try:
                async with asyncio.timeout(CALL_S):
                    body = await self._cluster.get(CONFIG_MAPS, self._name)
                found = msgspec.convert(body, _Map)
            except (ApiError, TimeoutError, msgspec.ValidationError) as error:
                self._cannot(error)
            else:
                self._troubled = False
                if self._news == before:  # what the watch has told meanwhile is newer
                    self._hear(found)
            await asyncio.sleep(LOOK_S)

    def _cannot(self, error: Exception) -> None:
        if not self._troubled:
            say(f"wishes to stop cannot be heard now: {error or 'the API does not answer'}")
        self._troubled = True

    def _hear(self, body: _Map) -> None:
        wish, word = body.wish, body.stacks
        if word != self._heard_stacks:
            self._heard_stacks = word
            if word:
                self._on_stacks(word)
        if body.scale != self._heard_scale:
            self._heard_scale = body.scale
            self._scaled(body.scale)
        if wish != self._heard:
            self._heard = wish
            if wish:
                self._on_wish(BY, wish == "now")

    def _scaled(self, text: str) -> None:
        if text.isascii() and text.isdigit():
            self._on_scale(SCALED_BY, int(text))
        elif text:
            say(f"annotation {SCALE} is ignored: {text[:40]!r} is no number of nodes")
