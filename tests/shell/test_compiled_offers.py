"""Spares are told by whom they can get compiled code, once for each, and nobody else is."""

from types import SimpleNamespace
from typing import Any

from holdfast.compiled_code import CompiledHere, TakeCompiled
from holdfast.shell.compiled_offers import STAMPS_MAX, CompiledOffers


def here(node: str, stamp: str = "", folder: str = "", machine: str = "m") -> CompiledHere:
    return CompiledHere(folder=folder or node, machine=machine, address=f"{node}:1", stamp=stamp)


def offers(*members: str) -> tuple[CompiledOffers, list[tuple[str, str]]]:
    """Those of a job with these members, and what was sent: who was told of which address."""
    told: list[tuple[str, str]] = []
    state: Any = SimpleNamespace(ranks=dict(enumerate(members)), nodes={})

    def send(node: str, order: TakeCompiled) -> None:
        told.append((node, order.address))

    return CompiledOffers(state, send), told


def test_a_spare_is_told_of_a_member_whoever_speaks_first() -> None:
    for order in (("a", "s"), ("s", "a")):
        found, told = offers("a")
        for node in order:
            found.heard(node, here(node, "x" if node == "a" else ""))
        found.heard("a", here("a", "x"))
        assert told == [("s", "a:1")]


def test_members_that_have_compiled_the_same_are_asked_in_turn_and_other_code_once_each() -> None:
    found, told = offers("a", "b", "c")
    for node, stamp in (("a", "x"), ("b", "x"), ("c", "y")):
        found.heard(node, here(node, stamp))
    for spare in ("s", "t"):
        found.heard(spare, here(spare))
    of_x = {address for _, address in told} - {"c:1"}
    assert of_x == {"a:1", "b:1"}, "not both ask the same"
    assert sorted(node for node, address in told if address == "c:1") == ["s", "t"]


def test_who_has_it_or_cannot_use_it_is_not_told() -> None:
    found, told = offers("a")
    found.heard("a", here("a", "x", folder="f"))
    found.heard("same folder", here("same folder", folder="f"))
    found.heard("same code", here("same code", "x"))
    found.heard("other machine", here("other machine", machine="n"))
    found.heard("b", here("b", "y"))  # a spare that has compiled by itself has nothing to give
    found.heard("s", here("s"))
    assert told == [("b", "a:1"), ("s", "a:1")]


def test_news_of_a_member_reaches_spares_and_a_connection_that_is_gone_is_forgotten() -> None:
    found, told = offers("a")
    found.heard("s", here("s"))
    for number in range(STAMPS_MAX + 3):
        found.heard("a", here("a", f"x{number}"))
    assert len(told) == STAMPS_MAX
    found.gone("a")
    found.gone("s")
    found.heard("s", here("s"))
    assert len(told) == STAMPS_MAX, "the member has not said yet what it has now"
