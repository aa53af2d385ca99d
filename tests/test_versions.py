"""What `--set` means for the arguments and variables of a job."""

import pytest

from holdfast.versions import Version, merged, with_option


@pytest.mark.parametrize(
    ("before", "key", "value", "after"),
    [
        ("", "lr", "1", "--lr 1"),
        ("--lr 2 --x", "lr", "1", "--lr 1 --x"),
        ("--lr=2 --x", "lr", "1", "--lr=1 --x"),
        ("lr=2 x=3", "lr", "1", "lr=1 x=3"),
        ("optim.lr=2", "optim.lr", "1", "optim.lr=1"),
        ("--batch-size 4", "batch_size", "8", "--batch-size 8"),
        ("--bf16 --lr 2", "bf16", "no", "--bf16 no --lr 2"),
        ("--x --bf16", "bf16", "no", "--x --bf16 no"),
        ("--lr 2 --lr 3", "lr", "1", "--lr 2 --lr 1"),
        ("lr --y", "lr", "1", "lr --y --lr 1"),
        ("--lr 2", "lr", "-1", "--lr=-1"),
        ("--a=b=c", "a", "d=e", "--a=d=e"),
        ("--out lr", "lr", "1", "--out lr --lr 1"),
    ],
)
def test_an_option_is_changed_as_it_is_written(
    before: str, key: str, value: str, after: str
) -> None:
    assert " ".join(with_option(tuple(before.split()), key, value)) == after


def test_variables_are_told_apart_from_options() -> None:
    version = Version(sets={"env.A": "1", "b": "2", "env.C": ""})
    assert (version.env, version.args(("x",))) == ({"A": "1", "C": ""}, ("x", "--b", "2"))


def test_later_values_win_however_the_option_is_written() -> None:
    before = {"batch_size": "1", "env.A_B": "1"}
    after = merged(before, {"batch-size": "2", "env.A-B": "2"})
    assert after == {"batch_size": "2", "env.A_B": "1", "env.A-B": "2"}
