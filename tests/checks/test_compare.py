"""Results of two machines are compared where they are of the same kind."""

from holdfast.checks.compare import compared
from holdfast.checks.outcome import CheckResult

KIND = "x86_64 AVX512, torch 2"


def result(name: str, digest: str) -> CheckResult:
    return CheckResult(name=name, state="ok", found="", digest=digest)


def test_other_bits_of_the_same_kind_are_a_failure_that_names_the_check() -> None:
    here = [result("matmul", f"{KIND}=aa"), result("model step", f"{KIND}=bb")]
    same = compared(here, "b.json", here)
    assert (same.state, same.found) == ("ok", "the same bits in 2 results")
    there = [here[0], result("model step", f"{KIND}=cc")]
    other = compared(here, "b.json", there)
    assert (other.state, other.found) == ("failed", "other bits: model step")


def test_another_kind_of_device_is_not_compared() -> None:
    here, there = [result("matmul", f"{KIND}=aa")], [result("matmul", "aarch64, torch 2=bb")]
    assert compared(here, "b.json", there).state == "skipped"


def test_of_several_kinds_those_that_both_have_are_compared() -> None:
    here = [result("matmul", f"A=1;{KIND}=2")]
    assert compared(here, "b", [result("matmul", f"{KIND}=2;B=9")]).state == "ok"
    assert compared(here, "b", [result("matmul", f"{KIND}=3;B=9")]).state == "failed"
