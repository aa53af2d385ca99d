"""The page on `holdfast.train`: everything that a training script can call, from its source."""

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

from docs.markdown import prose

SOURCES = Path(__file__).resolve().parent.parent / "holdfast" / "train"
TRAIN = (  # what holdfast.train exports, in the order of a script
    ("session.py", "join"),
    ("session.py", "Run"),
    ("state.py", "State"),
    ("data.py", "loader"),
    ("data.py", "Loader"),
    ("flops.py", "count_flops"),
    ("../datasets/place.py", "dataset"),
    ("update_ratio.py", "update_ratio"),
)


def train() -> str:
    """Everything that a training script can call."""
    body = "\n\n".join(_exported(file, name) for file, name in TRAIN)
    return f"""# holdfast.train

What a training script imports: `from holdfast.train import join, loader`. How to use it is in
[guides/your-script.md](../guides/your-script.md). Errors are those of [errors.md](errors.md).

{body}
"""


def _exported(file: str, name: str) -> str:
    tree = ast.parse((SOURCES / file).read_text())
    node = next(n for n in tree.body if getattr(n, "name", None) == name)
    if isinstance(node, ast.FunctionDef):
        return f"## {name}\n\n{_signature(node, name)}\n\n{prose(ast.get_docstring(node) or '')}"
    assert isinstance(node, ast.ClassDef)
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
    members = [text for m in methods for text in _member(m, name.lower())]
    return f"## {name}\n\n{prose(ast.get_docstring(node) or '')}\n\n" + "\n\n".join(members)


def _member(method: ast.FunctionDef, owner: str) -> Iterator[str]:
    """A method or property that has no underscore; of `__init__` the attributes it explains."""
    if method.name == "__init__":
        for set_, told in itertools.pairwise(method.body):
            match set_, told:
                case (
                    ast.Assign(targets=[ast.Attribute(attr=attribute)]),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    yield f"### {owner}.{attribute}\n\n{prose(text)}"
    elif not method.name.startswith("_"):
        property_ = "property" in map(ast.unparse, method.decorator_list)
        head = "" if property_ else f"{_signature(method, f'{owner}.{method.name}')}\n\n"
        text = prose(ast.get_docstring(method) or "")
        yield f"### {owner}.{method.name}\n\n{head}{text}"


def _signature(function: ast.FunctionDef, name: str) -> str:
    arguments = [*_arguments(function.args)]
    result = ast.unparse(function.returns or ast.Constant(None))
    line = f"{name}({', '.join(arguments)}) -> {result}"
    if len(line) > 96:
        inner = "".join(f"    {argument},\n" for argument in arguments)
        line = f"{name}(\n{inner}) -> {result}"
    return f"```python\n{line}\n```"


def _arguments(given: ast.arguments) -> Iterator[str]:
    """As the user gives them: without `self`."""
    plain = [argument for argument in given.args if argument.arg != "self"]
    yield from (_argument(a, None) for a in plain)
    if given.vararg is not None:
        yield "*" + _argument(given.vararg, None)
    elif given.kwonlyargs:
        yield "*"
    yield from map(_argument, given.kwonlyargs, given.kw_defaults)
    if given.kwarg is not None:
        yield "**" + _argument(given.kwarg, None)


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg
    text += f": {ast.unparse(argument.annotation)}" if argument.annotation is not None else ""
    return text if default is None else f"{text} = {ast.unparse(default)}"
