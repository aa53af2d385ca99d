"""Hears what people ask of a job from outside: to stop, to train on another number of nodes, to run
another version, or for the stacks of its workers, by an annotation on its ConfigMap.

The one object is watched, so that a wish is heard at once, and looked at every `LOOK_S` besides:
whatever stands between us and the API may hold a watch back, or answer in its place. A wish waits
while no controller runs. What cannot be read is said once, and heard when it can be.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from holdfast.drivers.kubernetes.cluster import CONFIG_MAPS, ApiError, Change, Cluster
from holdfast.drivers.kubernetes.manifests.names import SCALE, STACKS, STOP, UPDATE, UPDATE_SPEC
from holdfast.drivers.kubernetes.talk import say
from holdfast.drivers.kubernetes.watch import follow
from holdfast.messages import UpdateJob

LOOK_S = 5.0
CALL_S = 5.0  # for one look: a connection that is cut may hang for longer
DIGITS = 6  # of a number of nodes: no cluster has more, and no journal takes any number
BY, SCALED_BY = "holdfast stop", "holdfast scale"
_updates = msgspec.json.Decoder(UpdateJob)
OnWish = Callable[[str, bool], None]


class _Meta(msgspec.Struct, frozen=True):
    annotations: dict[str, str] | None = None


class _Map(msgspec.Struct, frozen=True):
    """Of a ConfigMap only what may carry a request."""

    metadata: _Meta

    def says(self, annotation: str) -> str:
        """What stands there; empty if nothing does."""
        return (self.metadata.annotations or {}).get(annotation, "")


class Wishes:
    """Calls `on_wish(by, now)` once for every new wish to stop, also for one that is there already,
    `on_stacks` with each new word of somebody who wants stacks, `on_scale(by, nodes)` with each
    new number of nodes, and `on_update` with each new wish for another version."""

    def __init__(
        self,
        cluster: Cluster,
        job: str,
        on_wish: OnWish,
        on_stacks: Callable[[str], None] = lambda _word: None,
        on_scale: Callable[[str, int], None] = lambda _by, _nodes: None,
        on_update: Callable[[UpdateJob], None] = lambda _order: None,
    ) -> None:
        self._cluster, self._on_wish, self._on_stacks = cluster, on_wish, on_stacks
        self._on_scale, self._on_update = on_scale, on_update
        self._name = f"{job}-job"
        self._heard: dict[str, str] = {}  # by annotation, what stood there last
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
            say(f"stop requests cannot be read now: {str(error) or 'the API does not answer'}")
        self._troubled = True

    def _hear(self, body: _Map) -> None:
        if word := self._news_in(body, STACKS):
            self._on_stacks(word)
        if text := self._news_in(body, SCALE):
            self._scaled(text)
        for annotation in (UPDATE_SPEC, UPDATE):
            if text := self._news_in(body, annotation):
                self._updated(annotation, text)
        if wish := self._news_in(body, STOP):
            self._on_wish(BY, wish == "now")

    def _news_in(self, body: _Map, annotation: str) -> str:
        """What stands there if it is new and not empty."""
        said = body.says(annotation)
        before, self._heard[annotation] = self._heard.get(annotation, ""), said
        return said if said != before else ""

    def _scaled(self, text: str) -> None:
        if text.isascii() and text.isdigit() and len(text) <= DIGITS:
            self._on_scale(SCALED_BY, int(text))
        else:
            say(f"annotation {SCALE} is ignored: {text[:40]!r} is not a number of nodes")

    def _updated(self, annotation: str, text: str) -> None:
        try:
            self._on_update(_updates.decode(text))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            say(f"annotation {annotation} is ignored: {error}")
