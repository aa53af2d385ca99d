"""A number of things, in words."""


def count(number: int, noun: str, nouns: str | None = None) -> str:
    """`1 restart`, `2 restarts`; with `nouns` where an s is not enough."""
    return f"{number} {noun}" if number == 1 else f"{number} {nouns or noun + 's'}"
