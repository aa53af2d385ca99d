"""Reading YAML strictly: one meaning or a clear refusal, whatever the text, and never much work."""

import copy
import os
import string
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.errors import UNSEEN, Error
from holdfast.spec import Job, job_from_dict, reading
from holdfast.spec.load import job_from_text, to_yaml
from holdfast.spec.reading import UnreadableError, UnsureError, mapping, plain_value
from tests.more import examples

ROOT = Path(__file__).parents[2]
FUZZ = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=examples(150),
    suppress_health_check=list(HealthCheck),
)
JOB = "name: a\nscript: b\n"
BOMB = "x0: &x0 [1]\n" + "".join(
    f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 30)
)


def refused(text: str) -> Error:
    with pytest.raises(Error) as caught:
        job_from_text(text, where="job.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("true", True), ("False", False),
        ("0", 0), ("-12", -12), ("0x1F", 31), ("1.5", 1.5), ("-.5", -0.5), ("1.0e+3", 1000.0),
        ("1e-4", "1e-4"), ("10Gi", "10Gi"), ("2024-01-01", "2024-01-01"), ("1.2.3", "1.2.3"),
        ("=", "="), ("y", "y"), ("３", "３"), ("::1", "::1"), ("_", "_"), ("a:b", "a:b"),
    ],
)  # fmt: skip
def test_a_plain_word_means_what_both_versions_of_yaml_say(text: str, value: object) -> None:
    found = plain_value(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        "010", "08", "-07", "0o17", "0b11", "-0x1F", "1_000", "0x_f", "1_0.5", ".5_0", "1:30",
        "1:30.5", "yes", "No", "ON", "off", "1" * 41,
    ],
)  # fmt: skip
def test_a_word_on_which_they_differ_is_refused(text: str) -> None:
    with pytest.raises(UnsureError):
        plain_value(text)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("nodes: true", "nodes (line 3): must be a whole number"),
        (
            "nodes: 1:30",
            "nodes (line 3): '1:30': YAML 1.1 and YAML 1.2 interpret it differently; write a plain",
        ),
        ("nodes: 010", "nodes (line 3): '010': YAML 1.1 and YAML 1.2 interpret"),
        ("nodes: {count: ３}", "nodes.count (line 3): must be a whole number"),
        ("nodes: {count: '3'}", "nodes.count (line 3): must be a whole number"),
        ("workers_per_node: true", "must be a whole number or 'auto'"),
        ("recovery: {window_s: true}", "recovery.window_s (line 3): must be a number"),
        ("recovery: {window_s: '1_0'}", "recovery.window_s (line 3): must be a number"),
        ("recovery: {window_s: .inf}", "recovery.window_s (line 3): must be a finite number"),
        ("snapshots: {beside: yes}", "write true or false, or quote it"),
        ("nodes: {count: 1, count: 2}", "nodes.count (line 3): duplicate key, on this line"),
        ("overlay: {a: 1, a: 2}", "overlay.a (line 3): duplicate key"),
        ("overlay: {x: 99999999999999999999}", "overlay.x (line 3): is too large a number"),
        ('env: {A: "a\\0b"}', "env.A (line 3): contains a NUL character"),
        (
            "env: {'A=B': x}",
            "env.A=B (line 3): the name of a variable must be printable ASCII without `=`",
        ),
        ("env: {'': x}", "the name of a variable must be printable ASCII without `=`"),
        (f"env: {{A: {'x' * 130_001}}}", "has 130,001 bytes; the limit of Linux is 130,000"),
        (f"args: [{'é' * 65_001}]", "args[0] (line 3): has 130,002 bytes"),
        ('"\\e[31mx": 1', "\\x1b[31mx (line 3): unknown key"),
        ('"a\\nb": 1', "a\\nb (line 3): unknown key"),
    ],
)
def test_what_cannot_be_meant_is_an_error_with_its_place(line: str, told: str) -> None:
    error = refused(f"{JOB}{line}\n")
    assert error.slug == "job-invalid"
    assert told in error.why


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            f"{JOB}overlay: &a\n  x: *a\n",
            "the alias 'a' refers to a node that contains it (line 4)",
        ),
        (f"{JOB}scheduling: {{affinity: &a [*a]}}\n", "refers to a node that contains it (line 3)"),
        (f"{JOB}overlay: &a\n  <<: *a\n", "refers to a node that contains it"),
        (f"{JOB}args: *b\n", "found undefined alias 'b'"),
        (f"{JOB}overlay:\n  " + BOMB.replace("\n", "\n  "), "more than 100,000 values"),
        (f"{JOB}a: &a {'x' * 900_000}\nb: [{'*a, ' * 100}]\n", "more than 100,000 values"),
        (f"{JOB}overlay: {'[' * 65}{']' * 65}\n", "it is nested too deeply (line 3)"),
        (f"{JOB}overlay: {'{a: ' * 5000}", "it is nested too deeply (line 3)"),
        (f"{JOB}nodes: !!bool maybe\n", "the tag 'tag:yaml.org,2002:bool' is not supported"),
        (f"{JOB}env: !!set {{A, B}}\n", "is not supported (line 3)"),
        (f"{JOB}env: {{A: !!python/name:os.system ''}}\n", "is not supported (line 3)"),
        (f"{JOB}env: {{A: a\0b}}\n", "the character U+0000 is not allowed (line 3)"),
        (f"{JOB}\x1b[31m: 1\n", "the character U+001B is not allowed (line 3)"),
        (f"{JOB}<<: 3\n", "the value of `<<` must be a mapping"),
        (f"{JOB}[a]: 3\n", "a key must be text"),
    ],
)
def test_what_has_no_sound_reading_is_refused_at_once(text: str, told: str) -> None:
    error = refused(text)
    assert error.slug == "job-file-unreadable"
    assert told in error.why


def test_aliases_and_merged_keys_of_a_sensible_size_are_read() -> None:
    read = mapping("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, *a]\n? &k key\n: *k\non: 1\n")
    assert read.problems == []
    assert read.data == {
        "a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": [{"x": 1, "y": 2}] * 2,
        "key": "key", "on": 1,
    }  # fmt: skip
    assert mapping("a: {<<: [{x: 1}, {x: 2}]}\n").data == {"a": {"x": 1}}
    assert mapping("a: !!str 010\nb: ! yes\nc: !!map {d: !!seq []}\n").data == {
        "a": "010", "b": "yes", "c": {"d": []},
    }  # fmt: skip


def test_a_number_with_an_exponent_is_text_in_arguments_and_a_number_where_one_is_due() -> None:
    job = job_from_text(f"{JOB}args: [--lr, 1e-4]\nrecovery: {{window_s: 1e3}}\n", where="x")
    assert (job.args, job.recovery.window_s) == (("--lr", "1e-4"), 1000.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "\\ud83d\\ude00 \\uD83D\\uDE00"}', "\U0001f600 \U0001f600"),
        ('{"a": "\\\\ud83d\\\\ude00"}', "\\ud83d\\ude00"),
        ('{"a": "\\\\\\ud83d\\ude00"}', "\\\U0001f600"),
        ("a: '\\ud83d\\ude00'", "\\ud83d\\ude00"),
    ],
)
def test_surrogate_pairs_of_json_are_characters(text: str, value: str) -> None:
    assert reading.mapping(text).data == {"a": value}


def test_half_a_surrogate_pair_is_refused_in_json_too() -> None:
    with pytest.raises(reading.UnreadableError, match="escape code"):
        reading.mapping('{"a": "\\ud83d\\ude00 \\ud83d"}')


def test_of_endless_problems_the_first_are_told_and_the_others_counted() -> None:
    error = refused(JOB + "".join(f"k{i}: 1\n" for i in range(3000)))
    assert "3,000 problems" in error.what
    assert "k19 (line 22): unknown key" in error.why
    assert "k20 (line" not in error.why
    assert error.why.endswith("and 2,980 more")
    assert len(str(refused(f"{JOB}{'x' * 500_000}: 1\n"))) < 2000
    assert len(str(refused(f"name: {'x' * 500_000}\nscript: b\n"))) < 2000


def test_data_that_is_no_yaml_is_held_to_the_same(tmp_path: Path) -> None:
    cycle: dict[str, Any] = {"name": "a", "script": "b", "overlay": {}}
    cycle["overlay"]["again"] = cycle
    for wrong, told in (
        (cycle, "is nested deeper than 64 levels"),
        ({"name": "a", "script": "b", "overlay": {1: 2}}, "its name must be text"),
        ({"name": "a", "script": tmp_path}, "must be plain data, not PosixPath"),
        ({"name": "a", "script": "\udcff"}, "script: is not valid Unicode"),
        ({"name": "a", "script": "b", "env": {"\ud800": "x"}}, "its name is not valid Unicode"),
    ):
        with pytest.raises(Error) as caught:
            job_from_dict(wrong, where="a dict")
        assert told in caught.value.why


def test_a_file_that_cannot_be_read_is_said_to_be_so_and_nobody_waits(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "wide").write_text(JOB, encoding="utf-16")
    (tmp_path / "large").write_bytes(b" " * (reading.FILE_BYTES_MAX + 1))
    for path, told in (
        ("loop", "Too many levels of symbolic links"),
        ("x" * 300, "File name too long"),
        ("a\0b", "embedded null"),
        ("wide", "it is not UTF-8 text (byte 0)"),
        ("large", "it is larger than 1048576 bytes"),
    ):
        with pytest.raises(UnreadableError) as caught:
            reading.file_text(tmp_path / path)
        assert told in str(caught.value)
    assert reading.file_text(tmp_path / "pipe") == ""


def test_what_is_neither_pipe_nor_terminal_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as /proc/kmsg, for which a pipe stands whose writer says nothing."""
    os.mkfifo(tmp_path / "kmsg")
    silent = os.open(tmp_path / "kmsg", os.O_RDWR)
    monkeypatch.setattr("stat.S_ISFIFO", lambda _mode: False)
    assert reading.file_text(tmp_path / "kmsg") == ""
    os.close(silent)


# ── fuzz ──────────────────────────────────────────────────────────────────────────────────────

SEEDS = [
    JOB + "nodes: {count: 2, spares: 1}\nargs: [--lr, 1e-4, '010']\nenv: {A: 'yes', B: ''}\n",
    JOB + "overlay: &o\n  spec: {a: [1, 2.5, null]}\nscheduling:\n  affinity: {<<: *o}\n",
    JOB + "resources: {cpu: 8, memory: 10Gi}\nrecovery: {window_s: 1e3}\nlogs: {terminal: all}\n",
]
NASTY = [
    "\0", "\x1b[2J", "\u202e", "\ufeff", "\t", "\r", "\u2028", "&a ", "*a", "<<: *o", "!!bool ",
    "!!python/object:x ", "? ", ": ", "- ", "{", "}", "[", "]", "'", '"', '"\\ud800"', '"\\0"', "#",
    "---\n", "...\n", "%YAML 1.1\n", "|", ">-\n", "010", "1:30", "yes", "１", ".nan", "-.inf",
    "9" * 400, "[" * 80, "0o7", "1_0", "~", "=", "2024-99-99", "x" * 300, "\n", "\n  ", "true",
]  # fmt: skip
TEXTS = st.text(max_size=8) | st.sampled_from(NASTY)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A good job file with a few pieces cut out and nasty ones put in."""
    text = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 5)))
        text = text[:start] + draw(TEXTS) + text[end:]
    return text


def fit_to_be_seen(error: Error) -> None:
    assert error.slug in ("job-invalid", "job-file-unreadable")
    assert not UNSEEN.search(str(error))
    assert len(str(error)) < 8000


def sound_or_clear(text: str) -> None:
    """A job that can be kept and read again unchanged, or an error fit to be seen."""
    try:
        job = job_from_text(text, where="job.yaml")
    except Error as error:
        fit_to_be_seen(error)
        return
    msgspec.json.encode(job.model_dump(mode="json"))
    assert job_from_text(to_yaml(job), where="again") == job


@FUZZ
@given(mutated())
def test_any_text_gives_a_job_or_a_clear_error(text: str) -> None:
    sound_or_clear(text)


KEYS = sorted(Job.model_fields)
VALUES = st.recursive(
    TEXTS | st.none() | st.booleans() | st.integers() | st.floats() | st.characters(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@FUZZ
@given(st.dictionaries(st.sampled_from(KEYS) | TEXTS, VALUES, max_size=4))
@example({"args": ["0o7", "08", "1_0", "yes", "=", "1e-4", "\x85", "\u2028", "", "~", "<<"]})
@example({"env": dict.fromkeys(("on", "010", "~"), " x ")})
def test_any_data_gives_a_job_or_a_clear_error(data: dict[str, Any]) -> None:
    data = {"name": "a", "script": "b", **data}
    before = copy.deepcopy(data)
    try:
        job = job_from_dict(data, where="a dict")
    except Error as error:
        fit_to_be_seen(error)
        return
    assert repr(data) == repr(before)
    assert job_from_text(to_yaml(job), where="again") == job


@FUZZ
@given(st.text(string.digits + "+-._:eExXoObfFyn", max_size=8))
def test_a_plain_word_is_never_read_otherwise_than_by_yaml_1_1(text: str) -> None:
    """Where PyYAML reads a number, a boolean or null, it is the same one or refused."""
    try:
        ours = plain_value(text)
    except UnsureError:
        return
    loader = yaml.SafeLoader("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    kind = tag.rpartition(":")[2]
    if kind in ("int", "float", "bool", "null"):
        theirs = yaml.SafeLoader.yaml_constructors[tag](loader, yaml.ScalarNode(tag, text))
        assert repr(ours) == repr(theirs)
    else:
        assert ours == text
