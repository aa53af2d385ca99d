"""What the source of a script tells without being run."""

import ast
from pathlib import Path

import pytest

from holdfast.agent import script_source
from holdfast.agent.fork_protocol import Program
from holdfast.agent.script_source import Import


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from holdfast.train import join\nrun = join()", True),
        ("from holdfast.train import loader, join as enter\nenter()", True),
        ("from holdfast.train import *\njoin()", True),
        ("from holdfast.train.session import join\njoin()", True),
        ("import holdfast.train\nholdfast.train.join()", True),
        ("import holdfast.train as ht\nht.join()", True),
        ("from holdfast import train\ntrain.join()", True),
        ("def f():\n    from holdfast.train import join\n    return join()", True),
        ("from holdfast.integrations.accelerate import keep\nkeep(accelerator)", True),
        ("from holdfast.integrations.accelerate import *\nkeep(accelerator)", True),
        ("from holdfast.integrations.torchtitan import keep\nkeep(trainer)", False),
        ("from holdfast.train import join", False),
        ("import holdfast.train\nholdfast.train.loader()", False),
        ("from holdfast.train import loader\nfrom os.path import join\njoin('a')", False),
        ("import holdfast.train\n', '.join(['a'])", False),
        ("# holdfast.train.join()", False),
        ("import holdfast.training_wheels as w\nw.join()", False),
        ("from .holdfast.train import join\njoin()", False),
        ("this is not python", False),
    ],
)
def test_a_script_is_instrumented_if_it_calls_join(
    tmp_path: Path, source: str, expected: bool
) -> None:
    (tmp_path / "script.py").write_text(source)
    program = Program(script=str(tmp_path / "script.py"))
    assert script_source.is_instrumented(program) is expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("join(in_process=True)", True),
        ("join(in_process=chosen)", True),
        ("join(in_process=False)", False),
        ("join(backend='gloo')", False),
        ("other(in_process=True)", None),
    ],
)
def test_a_script_declares_in_its_call_of_join_that_it_can_be_kept(
    call: str, expected: bool | None
) -> None:
    tree = ast.parse(f"from holdfast.train import join\nfrom there import other\nrun = {call}")
    assert script_source.declares_in_process(tree) is expected


def test_a_module_is_looked_into_without_being_imported(tmp_path: Path) -> None:
    package = tmp_path / "some_pack"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "one.py").write_text("import holdfast.train as t; t.join()")
    (package / "__main__.py").write_text("import os")
    found = {
        name: script_source.is_instrumented(Program(module=name, workdir=str(tmp_path)))
        for name in ("some_pack", "some_pack.one", "some_pack.two", "json.tool")
    }
    assert found == {
        "some_pack": False,
        "some_pack.one": True,
        "some_pack.two": False,
        "json.tool": False,
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"Doc."\nimport a.b\nfrom c import d, e', [("a.b",), ("c", "d", "e")]),
        ("import a\nimport os\nos.environ['X'] = '1'\nimport b", [("a",), ("os",)]),
        ("import a\nprepare()\nimport b", [("a",)]),
        ("try:\n    import a\nexcept ImportError:\n    import b\n", [("a",)]),
        ("if TYPE_CHECKING:\n    import a\nLIMIT = 3\nimport b", [("b",)]),
        ("def f():\n    import a\n    f()\n@f()\nclass C: x = f()\nimport b", [("b",)]),
        ("from . import a\nfrom a import *", [("a",)]),
    ],
)
def test_only_imports_that_nothing_was_done_before_are_first(
    source: str, expected: list[tuple[str, ...]]
) -> None:
    found = script_source.first_imports(ast.parse(source))
    assert found == [Import(module, tuple(names)) for module, *names in expected]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os\nos.environ['A'] = '1'\nimport torch", 2),
        ("import os\nos.environ['A'] = '1'\nimport pandas\nfrom torch import nn", 3),
        ("import setup_env\nimport torch", 1),
        ("import os\nos.putenv('A', '1')\nfrom holdfast.train import join", 2),
        ("import os\nos.environ['A'] = '1'\nimport json\nimport lightning", 3),
        ("import os\nimport torch\nos.environ['A'] = '1'\nimport pandas", None),
        ("import os\ndef f(): pass\nimport torch", None),
        ("import os\nos.environ['A'] = '1'", None),
    ],
)
def test_a_script_is_parted_where_it_imports_torch_after_it_did_something(
    source: str, expected: int | None
) -> None:
    assert script_source.torch_at(ast.parse(source)) == expected
