"""Rules of style that a machine can check.

There are no exceptions but two lists of what came before its rule. They only get shorter: a name
that no longer needs to be in one has to leave it.
"""

import ast
import re
import statistics
from collections import Counter

from tests.tidy.source import OLDEST, Source, body_lines, package, sources

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 600
LINE_LENGTH_MAX = 100
MEDIAN_BODY_LINES_MAX = 10
PRAGMA = re.compile(r"\s+# (type: ignore|noqa).*$")  # for a tool, not for the reader
BANNED = frozenset(("util", "utils", "common", "helper", "helpers", "manager", "base", "data2"))
FACTS = frozenset(("NamedTuple", "BaseModel", "ScenarioSection", "Section", "Protocol"))
METHODS_MAX = 20
ATTRIBUTES_MAX = 15  # of what has state; a fact has as many as there is to say
TOO_LARGE = frozenset(
    (
        "controller/state.py: IncidentRecord",
        "controller/state.py: State",
        "drivers/kubernetes/driver.py: KubernetesDriver",
        "page.py: Page",
        "shell/nodes.py: NodeLives",
        "shell/shell.py: Shell",
        "simulation/agents.py: SimulatedAgent",
        "simulation/capacity.py: CapacityWorld",
        "simulation/control.py: Control",
        "simulation/ground_truth.py: GroundTruth",
        "simulation/referees.py: Referees",
        "simulation/wires.py: SimulatedWire",
        "simulation/world.py: World",
    )
)
TWICE = frozenset(("State",))
ALLOWED_FILES: frozenset[str] = frozenset()


def test_no_function_is_longer_than_the_limit() -> None:
    long = [
        f"{source}:{function.lineno} {function.name}: {lines} lines"
        for source in sources()
        for function in source.functions()
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long


def test_the_median_function_is_short() -> None:
    lengths = [body_lines(f) for source in package() for f in source.functions()]
    assert statistics.median(lengths) <= MEDIAN_BODY_LINES_MAX


def test_no_module_is_longer_than_the_limit() -> None:
    lengths = {str(source): source.text.count("\n") for source in sources()}
    assert not {path: n for path, n in lengths.items() if n > MODULE_LINES_MAX}


def test_no_line_is_longer_than_the_limit() -> None:
    long = [
        f"{source}:{number}"
        for source in sources()
        for number, line in enumerate(source.text.splitlines(), 1)
        if len(PRAGMA.sub("", line)) > LINE_LENGTH_MAX
    ]
    assert not long


def test_a_class_past_its_limits_is_two() -> None:
    found = {
        f"{source.path.relative_to('holdfast')}: {c.name}"
        for source in package()
        for c in source.classes()
        if len(_methods(c)) > METHODS_MAX or len(_attributes(c)) > ATTRIBUTES_MAX
    }
    assert not found - TOO_LARGE, "split these along what they own"
    assert not TOO_LARGE - found, "these are small enough now: take them off the list"


def _methods(c: ast.ClassDef) -> list[ast.stmt]:
    return [s for s in c.body if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)]


def _attributes(c: ast.ClassDef) -> set[str]:
    """What is assigned on `self`, and declared in the body unless that only lists a fact."""
    assigned = {
        node.attr
        for node in ast.walk(c)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    declared = {
        s.target.id
        for s in c.body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
    }
    return assigned if _is_fact(c) else assigned | declared


def _is_fact(c: ast.ClassDef) -> bool:
    told = [
        *c.keywords,
        *(k for d in c.decorator_list if isinstance(d, ast.Call) for k in d.keywords),
    ]
    frozen = any(keyword.arg == "frozen" for keyword in told)
    return frozen or bool({ast.unparse(b) for b in c.bases} & FACTS)


def test_a_class_name_occurs_once() -> None:
    """One name for one thing, one thing for one name; a private one is known to its module only."""
    names = [c.name for s in package() for c in s.classes() if not c.name.startswith("_")]
    twice = {name for name, count in Counter(names).items() if count > 1}
    assert not twice - TWICE, "these names are taken"
    assert not TWICE - twice, "these occur once now: take them off the list"


def test_names_explain_themselves() -> None:
    """No file, class or function is called utils, manager and the like; a test is a sentence."""
    banned = [
        f"{source}: {name}"
        for source in sources()
        for name in _names(source)
        if BANNED & set(_words(name))
    ]
    assert not banned


def _names(source: Source) -> list[str]:
    file = [] if str(source) in ALLOWED_FILES else [source.path.stem]
    classes = [c.name for c in source.classes()]
    functions = [f.name for f in source.functions() if not f.name.startswith("test_")]
    return [*file, *classes, *functions]


def _words(name: str) -> list[str]:
    """`RunManager` and `run_manager` as their words."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")


def test_every_module_says_what_it_is() -> None:
    assert not [str(s) for s in sources() if s.text.strip() and not ast.get_docstring(s.tree)]


def test_every_public_function_of_the_package_says_what_it_does() -> None:
    """Those at the top of a module and of its public classes, unless they are one statement."""
    silent = [
        f"{source}:{function.lineno} {function.name}"
        for source in package()
        for function in _public(source.tree)
        if ast.get_docstring(function) is None and len(function.body) > 1
    ]
    assert not silent


def _public(tree: ast.Module | ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found += _public(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found += [] if node.name.startswith("_") else [node]
    return found


def test_the_syntax_is_that_of_the_oldest_supported_python() -> None:
    assert OLDEST == (3, 11)
    assert sources(), "parsed with what is newer left out"


def test_no_class_inherits_but_errors_protocols_and_tagged_facts() -> None:
    """A class of ours is nobody's parent, unless an error or the root of a family of facts."""
    everywhere = {c.name: c for source in package() for c in source.classes()}
    wrong = []
    for source in package():
        own = everywhere | {c.name: c for c in source.classes()}
        wrong += [
            f"{source}:{c.lineno} {c.name}({parent})"
            for c in source.classes()
            for parent in (ast.unparse(b) for b in c.bases)
            if parent in own and not _may_be_parent(own[parent], own)
        ]
    assert not wrong


def _may_be_parent(parent: ast.ClassDef, own: dict[str, ast.ClassDef]) -> bool:
    roots = {ast.unparse(b) for b in parent.bases}
    tagged = any(keyword.arg == "tag" for keyword in parent.keywords)
    known = roots & {"Exception", "Protocol", "BaseModel"}
    return tagged or bool(known) or any(_may_be_parent(own[r], own) for r in roots if r in own)
