"""Each known problem is known by a real excerpt of a log, and by no other's."""

import re
from pathlib import Path

import pytest

from holdfast.diagnosis.signatures import GROUPS, SIGNATURES, Blame, spotted
from holdfast.drivers.kubernetes.lint import CHECKS
from holdfast.errors import SLUGS

RECORDED = Path(__file__).parent / "excerpts.txt"


def excerpts() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in RECORDED.read_text().splitlines():
        if line.startswith("== "):
            lines = found.setdefault(line.removeprefix("== "), [])
        else:
            lines.append(line)
    return found


EXCERPTS = excerpts()


def test_every_known_problem_has_an_excerpt_and_there_are_enough_of_them() -> None:
    assert EXCERPTS.keys() == SIGNATURES.keys()
    assert len(SIGNATURES) >= 80
    assert len(SIGNATURES) == sum(len(group) for group in GROUPS.values()), "a slug occurs once"


@pytest.mark.parametrize("slug", SIGNATURES)
def test_it_is_found_in_its_excerpt_and_nothing_else_is(slug: str) -> None:
    found = spotted(EXCERPTS[slug])
    assert [one.signature.slug for one in found] == [slug], found


@pytest.mark.parametrize("slug", SIGNATURES)
def test_it_says_whose_fault_it_is_what_happened_and_what_to_do(slug: str) -> None:
    one = SIGNATURES[slug]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", one.slug)
    assert one.cause.endswith(".") and len(one.cause) < 160
    assert one.remedy.endswith(".") and len(one.remedy) < 400


def test_a_cause_comes_before_its_consequences_whatever_was_printed_first() -> None:
    log = [*EXCERPTS["gloo-peer-closed"], *EXCERPTS["child-failed"], *EXCERPTS["gpu-memory"]]
    found = [one.signature.slug for one in spotted(log)]
    assert found == ["gpu-memory", "gloo-peer-closed", "child-failed"]


def test_the_first_of_many_lines_is_shown_with_their_count() -> None:
    line = EXCERPTS["nccl-timeout"][0]
    [one] = spotted(["epoch 1", *[f"  {line}"] * 16])
    assert (one.line, one.lines, one.text) == (2, 16, line)


@pytest.mark.parametrize(
    "line",
    [
        "step 120 loss 2.3150 grad_norm 0.913 tokens/s 51200",
        "Epoch 3: 100%|██████████| 1563/1563 [02:11<00:00, 11.91it/s, loss=0.312]",
        "NCCL INFO Bootstrap : Using eth0:10.0.0.4<0>",
        "NCCL INFO NET/OFI Selected Provider is efa",
        "UserWarning: The given NumPy array is not writable",
        "INFO:root:saving checkpoint to /ckpt/step-100",
        "[rank0]: joined a process group of 8 ranks over nccl",
        "connecting to tracker at 10.0.0.1:9091",
        "",
    ],
)
def test_what_a_healthy_job_prints_is_no_problem(line: str) -> None:
    assert spotted([line]) == []


def test_a_name_stands_for_one_thing_for_holdfast_explain() -> None:
    assert not SIGNATURES.keys() & (SLUGS.keys() | CHECKS.keys())


def test_consequences_are_not_blamed_on_anybody() -> None:
    assert {one.blame for one in SIGNATURES.values()} == set(Blame)
