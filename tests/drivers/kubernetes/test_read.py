"""Manifests are read as kubectl reads them: YAML 1.1, which a job file is not."""

import pytest

from holdfast.drivers.kubernetes.lint.read import manifests
from holdfast.errors import Error


def test_words_mean_what_they_mean_to_kubectl() -> None:
    (body,) = manifests(
        "a: [0400, yes, 'no', 1:30, 2024-01-01, 1.5, 0x1F, ~]\non: {8080: x, <<: {b: 1}}\n", "x"
    )
    assert body["a"] == [256, True, "no", "1:30", "2024-01-01", 1.5, 31, None]
    assert body["on"] == {"8080": "x", "b": 1}


def test_a_stream_of_documents_and_lists_becomes_their_objects() -> None:
    text = "---\nkind: A\n---\n# nothing\n---\nkind: List\nitems: [{kind: B}, {kind: C}]\n"
    assert [body["kind"] for body in manifests(text, "x")] == ["A", "B", "C"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: {b: 1, b: 2}", "the key 'b' (line 1): duplicate key, on this line"),
        ("a: &a [*a]", "refers to a node that contains it"),
        ("a: " + "[" * 100, "nested too deeply"),
        ("a: !!bool maybe", "is not supported"),
        ("a: " + "1" * 5000, "Exceeds the limit"),
    ],
)
def test_what_kubectl_would_refuse_or_choke_on_is_refused(text: str, told: str) -> None:
    with pytest.raises(Error, match="cannot read manifests from x") as caught:
        manifests(text, "x")
    assert told in caught.value.why
