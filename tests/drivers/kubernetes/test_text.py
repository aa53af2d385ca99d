"""Objects become YAML that says the same, always in the same words."""

from copy import deepcopy

import yaml
from hypothesis import given
from hypothesis import strategies as st

from holdfast.drivers.kubernetes.manifests.text import Notes, document, documents

NOTHING = Notes({})
TEXTS = st.text(max_size=30) | st.sampled_from(
    ["yes", "on", "1e3", "0x1F", "12:30", "1_000", "2026-11-20", "a: b", "a #b", "--x=1", "- a",
     "16Gi", "1.5", ".5", "*a", "&a", "!a", "a\nb\n", "a\n\n b", " a", "a ", "", "~", "=", "<<"]
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda v: st.lists(v, max_size=4) | st.dictionaries(TEXTS, v, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=5))
def test_what_is_written_is_read_back(body: dict[str, object]) -> None:
    assert (yaml.safe_load(document(body, NOTHING)) or {}) == body


@given(st.lists(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_so_is_a_stream(bodies: list[dict[str, object]]) -> None:
    assert list(yaml.safe_load_all(documents(bodies, NOTHING))) == bodies


@given(st.lists(TEXTS, min_size=1, max_size=60))
def test_many_names_of_a_rule_stand_on_a_few_lines(names: list[str]) -> None:
    body = {"rules": [{"resourceNames": names, "verbs": ["get"]}]}
    assert yaml.safe_load(document(body, NOTHING)) == body


def test_comments_stand_above_their_key_and_change_nothing() -> None:
    body = {"kind": "Job", "spec": {"template": {"spec": {"a": [{"b": 1}]}}, "backoffLimit": 2}}
    notes = Notes({"Job.spec.backoffLimit": "why " * 40, "*.a.b": "deep"})
    text = document(body, notes)
    assert yaml.safe_load(text) == body
    assert "      # deep\n" in text.replace("- # deep", "  # deep")
    assert text.count("  # why why") >= 2
    assert max(map(len, text.splitlines())) <= 100


def test_a_note_with_a_kind_wins() -> None:
    notes = Notes({"Job.spec.x": "of a Job", "*.spec.x": "of all"})
    assert notes.at(("Job", "spec", "x")) == "of a Job"
    assert notes.at(("Pod", "spec", "x")) == "of all"
    assert notes.at(("Pod", "spec", "y")) is None


def test_a_comment_may_be_for_one_value_only() -> None:
    body = {"kind": "Pod", "a": {"mount": False}, "b": {"mount": True}}
    assert document(body, Notes({"*.mount=true": "Why."})).count("# Why.\n  mount: true") == 1


NESTED = {
    "a": {"b": [{"c": "x\n\ny\n", "d": [[1, {"e": "f"}], {}]}]},
    "g": {"h": ["i" * 60, {"j": 1, "k": 2}]},
}


def test_what_many_objects_share_is_written_as_if_they_did_not() -> None:
    shared = [{"kind": "Pod", "name": n, "spec": {"own": n, **NESTED}} for n in "abc"]
    notes = {"Pod.spec.a.b": "once", "Pod.name": "told in the first"}
    whole = documents(shared, Notes(notes))
    assert whole == documents([deepcopy(one) for one in shared], Notes(notes))
    assert list(yaml.safe_load_all(whole)) == shared
    assert whole.count("# once") == 1
