"""The exception that ended a worker is found in what it printed, whatever is around it."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnosis import parse_traceback
from holdfast.diagnosis.logs import raised_in
from holdfast.events import WorkerError

RECORDED = Path(__file__).parent / "recorded"


def printed(folder: Path, source: str, **modules: str) -> str:
    """stderr of a real interpreter that runs `source` as train.py beside other modules."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    script = folder / "train.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    return done.stderr


def found(text: str) -> WorkerError:
    error = parse_traceback(text)
    assert error is not None
    return error


def place(error: WorkerError) -> tuple[str, int]:
    return Path(error.file).name, error.line


def test_type_message_and_place_of_a_plain_exception(tmp_path: Path) -> None:
    text = printed(tmp_path, "def f():\n    raise KeyError('lr')\n\nf()\n")
    error = found("Epoch 1\nloss 2.3\n" + text)
    assert (error.type, error.message) == ("KeyError", "'lr'")
    assert place(error) == ("train.py", 2)
    assert error.traceback == text


def test_the_place_is_in_the_users_code_not_in_the_library_it_called(tmp_path: Path) -> None:
    error = found(printed(tmp_path, "import json\n\njson.loads('{')\n"))
    assert error.type == "json.decoder.JSONDecodeError"
    assert place(error) == ("train.py", 3)


def test_of_a_chain_the_exception_that_was_not_caught_counts(tmp_path: Path) -> None:
    source = "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('bad') {}\n"
    for cause in ("from e", ""):
        text = printed(tmp_path, source.format(cause))
        error = found(text)
        assert (error.type, error.message) == ("ValueError", "bad")
        assert place(error) == ("train.py", 4)
        assert error.traceback == text
        assert [raised.type for raised in raised_in(text)] == ["ZeroDivisionError", "ValueError"]


def test_a_handled_traceback_before_the_fatal_one_is_not_part_of_it(tmp_path: Path) -> None:
    source = (
        "import traceback\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
        "raise OSError('fatal')\n"
    )
    text = printed(tmp_path, source)
    assert [(r.type, r.message) for r in raised_in(text)] == [("OSError", "fatal")]
    assert found(text).traceback.count("Traceback") == 1


def test_a_group_is_placed_where_its_first_member_was_raised(tmp_path: Path) -> None:
    source = (
        "def bad(n):\n    raise ValueError(n)\n\n"
        "found = []\nfor n in (1, 2):\n    try:\n        bad(n)\n"
        "    except ValueError as e:\n        found.append(e)\n"
        "raise ExceptionGroup('both', found)\n"
    )
    text = printed(tmp_path, source)
    error = found(text)
    assert error.type == "ExceptionGroup"
    assert error.message == "both (2 sub-exceptions)"
    assert place(error) == ("train.py", 2)
    assert [raised.type for raised in raised_in(text)] == [
        "ExceptionGroup",
        "ValueError",
        "ValueError",
    ]


def test_a_group_whose_members_were_never_raised_is_placed_where_it_was(tmp_path: Path) -> None:
    error = found(printed(tmp_path, "\nraise ExceptionGroup('two', [ValueError(1), OSError(2)])\n"))
    assert (error.type, place(error)) == ("ExceptionGroup", ("train.py", 2))


def test_a_script_that_cannot_be_compiled(tmp_path: Path) -> None:
    error = found(printed(tmp_path, "x = 1\ndef f(:\n    pass\n"))
    assert error.type == "SyntaxError"
    assert place(error) == ("train.py", 2)


def test_a_module_that_cannot_be_compiled_is_the_place(tmp_path: Path) -> None:
    error = found(printed(tmp_path, "import model\n", model="def f():\nreturn 1\n"))
    assert error.type == "IndentationError"
    assert place(error) == ("model.py", 2)


def test_a_message_of_several_lines_is_kept(tmp_path: Path) -> None:
    error = found(printed(tmp_path, "raise RuntimeError('one\\ntwo')\n"))
    assert error.message == "one\ntwo"


def test_an_exception_that_python_only_mentions_is_not_the_one(tmp_path: Path) -> None:
    source = (
        "class Broken:\n    def __del__(self):\n        raise OSError('ignored')\n\n"
        "keep = Broken()\n{}\n"
    )
    assert parse_traceback(printed(tmp_path, source.format(""))) is None
    assert found(printed(tmp_path, source.format("raise ValueError(1)"))).type == "ValueError"


def test_the_end_of_a_thread_counts_only_if_nothing_else_ended(tmp_path: Path) -> None:
    source = (
        "import threading\n\n\ndef work():\n    threading.main_thread().join()\n"
        "    raise OSError('in thread')\n\n\n"
        "threading.Thread(target=work).start()\n"
    )
    assert found(printed(tmp_path, source)).type == "OSError"
    text = printed(tmp_path, source + "raise ValueError(1)\n")
    assert text.index("ValueError") < text.index("OSError: in thread")
    assert found(text).type == "ValueError"


def test_a_native_crash_is_no_exception(tmp_path: Path) -> None:
    source = "import faulthandler\nfaulthandler.enable()\nimport os\nos.abort()\n"
    text = printed(tmp_path, source)
    assert "Fatal Python error" in text
    assert parse_traceback(text) is None


def test_a_class_defined_in_a_function_and_no_message(tmp_path: Path) -> None:
    source = "def f():\n    class Mine(Exception):\n        pass\n    raise Mine\n\nf()\n"
    error = found(printed(tmp_path, source))
    assert error.type.endswith("f.<locals>.Mine")
    assert error.message == ""


def test_a_deep_recursion(tmp_path: Path) -> None:
    error = found(printed(tmp_path, "def f():\n    return f()\n\nf()\n"))
    assert (error.type, place(error)) == ("RecursionError", ("train.py", 2))


@pytest.mark.parametrize("prefix", ["[rank1]: ", "[default1]:", "[default1]:[rank1]: "])
def test_the_prefix_of_a_rank_is_taken_off(tmp_path: Path, prefix: str) -> None:
    text = printed(tmp_path, "def f():\n    raise ValueError('mine')\n\nf()\n")
    marked = "".join(prefix + line for line in text.splitlines(keepends=True))
    error = found(marked)
    assert (error.type, error.message) == ("ValueError", "mine")
    assert place(error) == ("train.py", 2)
    assert prefix not in error.traceback


def test_ranks_that_print_at_once_are_told_apart(tmp_path: Path) -> None:
    text = printed(tmp_path, "def f():\n    raise ValueError('mine')\n\nf()\n").splitlines()
    mixed = "\n".join(f"[rank0]: {line}\n[rank1]: {line.replace('mine', 'other')}" for line in text)
    assert found(mixed).message == "other"


def test_a_traceback_cut_off_in_the_middle_is_not_one() -> None:
    assert parse_traceback('Traceback (most recent call last):\n  File "a.py", line 1') is None
    assert parse_traceback("") is None


def test_the_place_in_a_data_loaders_process_is_the_users() -> None:
    error = found((RECORDED / "loader_worker_raised.txt").read_text())
    assert error.type == "ValueError"
    assert error.message.startswith("Caught ValueError in DataLoader worker process 0.")
    assert place(error) == ("train.py", 19)
    assert error.traceback.rstrip().endswith("ValueError: bad sample 0")


@pytest.mark.parametrize("file", sorted(RECORDED.glob("*.txt")), ids=lambda p: p.stem)
def test_every_recorded_failure_is_placed_in_the_users_script(file: Path) -> None:
    error = found(file.read_text())
    assert error.file == "/home/me/gpt/train.py"
    assert error.line > 0
    assert "[rank" not in error.traceback


@given(st.text(alphabet='Traceback (most recent call last):\n |+-File"E', max_size=400))
def test_any_text_is_read_without_failing(text: str) -> None:
    parse_traceback("Traceback (most recent call last):\n" + text)


@given(st.lists(st.sampled_from((RECORDED / "wrapped_by_user.txt").read_text().splitlines())))
def test_any_mixture_of_real_lines_is_read_without_failing(lines: list[str]) -> None:
    error = parse_traceback("\n".join(lines))
    assert error is None or error.type
