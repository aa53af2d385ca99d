"""What `holdfast simulate --swarm` and `--seed` do and print."""

from holdfast.errors import Error


def swarm(first: int, count: int, *, hours: float, nodes: int, as_json: bool) -> None:
    """Run `count` worlds from seed `first` on; ends with status 1 if a referee objects."""
    raise _not_yet(first, count, hours, nodes, as_json)


def one(seed: int, *, hours: float, nodes: int, as_json: bool) -> None:
    """Run one world and tell its story."""
    raise _not_yet(seed, 1, hours, nodes, as_json)


def _not_yet(*words: object) -> Error:
    return Error("usage", f"cannot run {words}", why="not built yet", help="holdfast --help")
