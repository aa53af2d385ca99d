"""Readings in words, device by device: what is to be told of each, and no more.

Dozens of counters of a GPU are zero, and some say in other words what another one says: these are
left out, so that a line has room for what a person looks for.
"""

from collections.abc import Iterable, Iterator

from holdfast.detection.health import Reading

NONE = ("0 ", "0.0 ", "busy 0 ", "memory busy 0 ")
GPUS = "gpu"  # begins the kind of each reading of one
TOTALS = ("-sent", "-received", "-energy")  # which tell nothing of a moment


def gpus_in_words(readings: Iterable[Reading]) -> Iterator[str]:
    """A line for each GPU: how it is now."""
    some = (r for r in readings if r.kind.startswith(GPUS) and not r.kind.endswith(TOTALS))
    for device, texts in of_each_device(some).items():
        if texts:
            yield f"GPU {device}: {'; '.join(texts)}" if device else f"GPUs: {'; '.join(texts)}"


def of_each_device(readings: Iterable[Reading]) -> dict[str, list[str]]:
    """What is to be told of each; of some counters the device's name goes on with which it is."""
    known = list(readings)
    names = {reading.device for reading in known}
    found: dict[str, list[str]] = {}
    for reading in known:
        first = reading.device.partition(" ")[0]
        device = first if first in names else reading.device
        texts = found.setdefault(device, [])
        if reading.text and not (reading.value == 0 and reading.text.startswith(NONE)):
            texts.append(reading.text if device else f"{reading.kind}: {reading.text}")
    return {device: _without_repetition(texts) for device, texts in found.items()}


def _without_repetition(texts: list[str]) -> list[str]:
    """Each once, and none that is a part of another one."""
    once = list(dict.fromkeys(texts))
    return [a for a in once if not any(b.startswith(f"{a},") or b.endswith(f" {a}") for b in once)]
