"""What `holdfast update` refuses before anybody is asked."""

import pytest

from holdfast.cli.update import parsed
from holdfast.errors import Error
from tests.warm import holdfast


@pytest.mark.parametrize(
    ("words", "slug"),
    [
        ((), "usage"),
        (("--rollback", "--set", "lr=1"), "usage"),
        (("--set", "lr=1", "--when", "soon"), "usage"),
        (("--image", "new:2"), "update-image"),
    ],
)
def test_a_wish_that_cannot_be_one_is_refused(words: tuple[str, ...], slug: str) -> None:
    told = holdfast("update", "gpt", *words)
    assert (told.returncode, f"error[{slug}]" in told.stderr) == (2, True), told.stderr


def test_what_is_set_is_a_key_and_a_value() -> None:
    assert parsed(["--lr=1", "a=b=c", "env.X="]) == {"lr": "1", "a": "b=c", "env.X": ""}
    for text in ("lr", "=1", "--=1", "env.=1"):
        with pytest.raises(Error, match="KEY=VALUE"):
            parsed([text])


def test_a_key_of_the_job_file_is_not_taken_for_an_option() -> None:
    for text in ("args.0=300", "nodes.count=4"):
        with pytest.raises(Error, match="is a key of the job file") as refused:
            parsed([text])
        assert f"--set --{text} " in refused.value.help
        parsed([f"--{text}"])
    assert parsed(["trainer.max_epochs=3"]) == {"trainer.max_epochs": "3"}
