"""Another reader, written from docs/reference/checkpoint-format.md alone."""

import json
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from holdfast.checkpoint.catalog import previous_part
from holdfast.checkpoint.key import Key
from holdfast.checkpoint.open_store import open_store
from holdfast.checkpoint.save import commit, save_rank
from holdfast.checkpoint.tiers import Tier
from tests.checkpoint.making import NOW, Held, Snapshot, began

W = bytes(range(256)) * 70_000  # more than a chunk


def sound(data: bytes) -> Any:
    assert xxhash.xxh3_128_hexdigest(data[:-34]) == data[-34:-2].decode()
    return json.loads(data)


def read_all(place: Path) -> dict[str, bytes]:
    """The leaves of the newest checkpoint, those of one rank alone with its number."""
    lineages = [sound(path.read_bytes()) for path in (place / "attempts").glob("*.json")]
    manifests = [sound(path.read_bytes()) for path in place.glob("step-*/manifest.json")]

    def void(one: Any) -> bool:
        later = [x for x in lineages if x["attempt"] > one["attempt"]]
        return any((x["parent"] or {"step": -1})["step"] < one["step"] for x in later)

    counting = [one for one in manifests if not void(one)]
    newest = max(counting, key=lambda one: (one["step"], one["attempt"]))
    found: dict[str, bytes] = {}
    for part in newest["parts"]:
        data = (place / part["file"]).read_bytes()
        assert xxhash.xxh3_128_hexdigest(data) == part["xxh3_128"]
        for saved in sound(data)["parts"].values():
            index = msgspec.msgpack.decode(joined(place, saved["index"]))
            assert [leaf[6] for leaf in index[1]] == [leaf["name"] for leaf in saved["leaves"]]
            for leaf in saved["leaves"]:
                if leaf["chunks"] is not None:
                    name = f"{leaf['name']}@{part['rank']}" if leaf["own"] else leaf["name"]
                    found[name] = joined(place, leaf["chunks"])
    return found


def joined(place: Path, chunks: Any) -> bytes:
    pieces = []
    for chunk in chunks:
        data = (place / chunk["file"]).read_bytes()[chunk["at"] :][: chunk["length"]]
        assert xxhash.xxh3_128_hexdigest(data) == chunk["xxh3_128"]
        pieces.append(data)
    return b"".join(pieces)


def test_the_documented_format_is_enough_to_read_a_checkpoint(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    snapshots = [Snapshot(rank, 2) for rank in (0, 1)]
    began(store, 1)
    for key in (Key(1, 10), Key(1, 20), Key(1, 30), Key(2, 25)):
        if key.attempt == 2:
            began(store, 2, Key(1, 20))  # makes step 30 void
        for one in snapshots:
            shared = {"model.w": Held(W, own=False, save=3 if one.rank == 1 else 0)}
            private = {"step": f"{key.step}".encode(), "rng": b"r" * one.rank}
            cells = one.take(key, shared=shared, private=private)
            previous = previous_part(store, one.rank)
            save_rank(store, cells, job="job", tier=Tier.SHARED, previous=previous)
        commit(store, key, ranks=[0, 1], now=NOW)
    for one in snapshots:
        one.close()
    assert read_all(tmp_path) == {
        "model.w": W, "step@0": b"25", "rng@0": b"", "step@1": b"25", "rng@1": b"r",
    }  # fmt: skip
