"""Whoever asks for a rank that has not come yet waits for it, and sees what it would have seen."""

import ast
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast import rank
from holdfast.messages import Assignment
from tests.patience import PATIENCE_S

AHEAD = "import os\nfrom holdfast import rank\nrank.run_ahead()\n"


def run(folder: Path, source: str, line: bytes | None) -> tuple[int, list[str], str]:
    """Run this ahead and send this line, or nothing; exit status, output, words of ours."""
    path = folder / "script.py"
    path.write_text(AHEAD + source)
    ours, theirs = socket.socketpair()
    with ours:
        process = subprocess.Popen(
            [sys.executable, str(path)],
            env={**os.environ, "HOLDFAST_CONTROL_FD": str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        if line is not None:
            ours.sendall(line)
    output, words = process.communicate(timeout=PATIENCE_S)
    return process.returncode, output.splitlines(), words


def told(rank: int = 0, restarts: int = 0) -> bytes:
    env = {"RANK": str(rank), "LOCAL_RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "there"}
    env["TORCHELASTIC_RESTART_COUNT"] = str(restarts)
    told = Assignment(attempt=1, rank=rank, local_rank=5, world_size=8, redo_until=0, env=env)
    return msgspec.json.encode(told) + b"\n"


LOOKS = {
    "os.environ['RANK']": "0",
    "os.environ.get('LOCAL_RANK', 'none')": "5",
    "os.getenv('WORLD_SIZE')": "8",
    "'MASTER_ADDR' in os.environ": "True",
    "os.environ.setdefault('MASTER_ADDR', 'here')": "there",
    "os.environ.update(MASTER_ADDR='here') or os.environ['MASTER_ADDR']": "here",
    "os.environ.pop('RANK')": "0",
}


def test_a_look_at_the_rank_waits_for_it_also_in_forked_children(tmp_path: Path) -> None:
    source = (
        f"for asked in {list(LOOKS)}:\n"
        "    if not os.fork():\n"
        "        os.write(1, f'{asked}: {eval(asked)}\\n'.encode())\n"
        "        os._exit(0)\n"
        f"for _ in range({len(LOOKS)}): os.wait()\n"
    )
    status, output, words = run(tmp_path, source, told())
    assert status == 0, words
    assert sorted(output) == sorted(f"{asked}: {found}" for asked, found in LOOKS.items())


def test_what_needs_no_rank_does_not_wait_for_one(tmp_path: Path) -> None:
    source = "print(len(dict(os.environ)) > 1, os.environ.get('PATH') is not None, flush=True)\n"
    status, output, words = run(tmp_path, source + "rank.await_rank(); print('end')", None)
    assert (status, output, words) == (0, ["True True"], "")  # nothing more without a rank


def test_threads_wait_too(tmp_path: Path) -> None:
    source = (
        "import threading\n"
        "thread = threading.Thread(target=lambda: rank.await_rank())\n"
        "thread.start()\n"
        "print(os.environ['RANK'], os.environ['LOCAL_RANK'])\n"
        "thread.join()\n"
        "print(os.environ.get('HOLDFAST_CONTROL_FD'), type(os.environ).__name__)\n"
    )
    status, output, words = run(tmp_path, source, told())
    assert (status, output) == (0, ["0 5", "None _Environ"]), words


def test_a_script_that_replaces_the_environment_by_a_dict_gets_its_rank_in_it(
    tmp_path: Path,
) -> None:
    source = (
        "first = os.environ\n"
        "os.environ = dict(os.environ)\n"
        "rank.await_rank()\n"
        "print(os.environ['RANK'], type(os.environ).__name__, type(first).__name__)\n"
        "os.system('echo $LOCAL_RANK')\n"
    )
    status, output, words = run(tmp_path, source, told())
    assert (status, sorted(output)) == (0, ["0 dict _Environ", "5"]), words


@pytest.mark.parametrize(("rank", "restarts", "says"), [(0, 0, 1), (1, 0, 0), (0, 1, 0)])
def test_rank_0_tells_the_user_once_in_the_first_attempt(
    tmp_path: Path, rank: int, restarts: int, says: int
) -> None:
    source = "def look():\n    return os.environ['RANK']\nprint(look(), look())"
    _, output, words = run(tmp_path, source, told(rank, restarts))
    assert output == [f"{rank} {rank}"]
    assert words.count(f"{tmp_path}/script.py:5 needs the rank (RANK)") == says
    assert words.count("holdfast") == says


def test_a_library_that_joins_for_the_script_asks_without_a_word(tmp_path: Path) -> None:
    folder = tmp_path / "accelerate"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "state.py").write_text("import os\ndef look(): return os.environ['RANK']")
    source = "import accelerate.state\nprint(accelerate.state.look())"
    status, output, words = run(tmp_path, source, told())
    assert (status, output, words) == (0, ["0"], "")


def test_calls_that_need_a_rank_wait_and_are_put_back(tmp_path: Path) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("")
    (torch / "cuda.py").write_text("import os\ndef _lazy_init(): return dict(os.environ)['RANK']")
    source = (
        "import torch.cuda\n"
        "plain = torch.cuda._lazy_init\n"
        "rank.run_ahead()\n"
        "print(torch.cuda._lazy_init(), torch.cuda._lazy_init is plain)\n"
        "print(type(os.environ).__name__)\n"
    )
    status, output, words = run(tmp_path, source, told())
    assert (status, output) == (0, ["0 True", "_Environ"]), words
    assert "script.py:7 needs the rank (torch.cuda.lazy_init())" in words


def test_modules_that_have_taken_the_name_of_such_a_call_wait_too() -> None:
    """PyTorch's own `torch.cuda.memory` and `torch.cuda.random` reach a GPU by it."""
    cuda = Path(importlib.util.find_spec("torch.cuda").origin).parent  # type: ignore[union-attr, arg-type]
    taken = {
        f"torch.cuda.{path.stem}"
        for path in cuda.glob("[a-z]*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and "_lazy_init" in [n.name for n in node.names]
    }
    waiting = {module for module, name in rank._CALLS if name == "_lazy_init"}
    assert taken and taken | {"torch.cuda"} == waiting
