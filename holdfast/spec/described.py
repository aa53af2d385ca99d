"""The docstrings below the fields of a section, as descriptions in its JSON schema.

pydantic can read them too, but it reads the source of every section at each start, 27 ms of a
command that has no use for them. Here they are read when the schema is asked for.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from holdfast.spec.section import Section


def described(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` with a description for every field of the sections in it."""
    known = {section.__name__: section for section in Section.__subclasses__()}
    parts = {schema["title"]: schema, **schema.get("$defs", {})}
    for name, part in parts.items():
        for field, text in descriptions(known[name]) if name in known else ():
            part["properties"][field]["description"] = text
    return schema


def descriptions(section: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Each field that has a docstring below it, with that docstring."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(tree, ast.ClassDef)
    return _pairs(tree.body)


def _pairs(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    for one, below in pairwise(body):
        match one, below:
            case (
                ast.AnnAssign(target=ast.Name(id=field)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield field, inspect.cleandoc(text)
