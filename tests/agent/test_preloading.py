"""What is loaded ahead, and what is found not to be fit for it."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.agent import fork_protocol
from tests.more import long

LOAD = """
import sys, msgspec
from holdfast.agent import late_environment, preloading, fork_protocol
order = msgspec.json.decode(sys.argv[1], type=fork_protocol.Prepare)
sys.path.insert(0, order.program.workdir)
unfit = preloading.load(order.program, order.preload, lambda name: None)
names = [name for name in NAMES if name in sys.modules]
looked = sorted(late_environment.read_ahead)
found = {"unfit": unfit, "loaded": names, "argv": sys.argv, "looked": looked}
print(msgspec.json.encode(found).decode())
"""
LIBRARIES = {
    "plain": "import heavy",
    "heavy": "import os; found = os.environ.get('HEAVY_MODE')",
    "lazy": "def __getattr__(name):\n    import heavy\n    return heavy",
    "ranked": "import heavy, os\nrank = os.environ.get('RANK')",
    "noting": "import os\ndef rank_zero_only(): pass\n"
    "def _get(): return os.environ.get('RANK')\n"
    "rank_zero_only.rank = getattr(rank_zero_only, 'rank', int(_get() or 0))".replace("'", '"'),
    "guessing": "import os\ndef rank_zero_only(): pass\n"
    "rank_zero_only.rank = int(os.environ.get('RANK', '0'))",
    "keeper": "from ranked import rank\nimport ranked",
    "once": "import os, heavy\nos.environ.get('RANK')\n"
    "assert not hasattr(heavy, 'seen')\nheavy.seen = True",
    "busy": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    "broken": "raise ValueError('no')",
    "quits": "import sys; sys.exit(3)",
    "lightning": "",
    "s3fs": "",
}


# Counting GPUs loads the driver, and says nothing of it until a child tries.
CUDA = """
import os
counted = lost = False
def _is_compiled(): return True
def is_initialized(): return False
def _is_in_bad_fork(): return lost
def device_count():
    global counted
    counted = True
def forked():
    global lost
    lost = counted
os.register_at_fork(after_in_child=forked)
"""


class Loaded(msgspec.Struct):
    """What became of it."""

    unfit: dict[str, str]
    loaded: list[str]
    argv: list[str]
    looked: list[str]
    notes: str = ""


def load(folder: Path, script: str, after: str = "", **preload: object) -> Loaded:
    """Load for this script, in a process that has `LIBRARIES` installed, and then do this."""
    site = folder / "site-packages"
    site.mkdir(exist_ok=True)
    for name, source in LIBRARIES.items():
        (site / f"{name}.py").write_text(source)
    (folder / "own.py").write_text("")
    (folder / "script.py").write_text(script)
    program = fork_protocol.Program(
        script=str(folder / "script.py"), args=("--x",), workdir=str(folder)
    )
    order = fork_protocol.Prepare(
        program=program, preload=msgspec.convert(preload, fork_protocol.Preload)
    )
    source = LOAD.replace("NAMES", str([*LIBRARIES, "own", "colorsys"]))
    done = subprocess.run(
        [sys.executable, "-c", source + after, msgspec.json.encode(order).decode()],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = msgspec.json.decode(done.stdout, type=Loaded)
    found.notes = done.stderr
    return found


@pytest.mark.parametrize(
    ("script", "imports", "expected"),
    [
        ("import colorsys\nimport plain", True, ["plain", "heavy", "colorsys"]),
        ("import colorsys\nimport plain", False, []),
        ("from lazy import heavy", True, ["heavy", "lazy"]),
        ("import lightning", True, ["lightning", "s3fs"]),  # it imports that at its first step
        ("import lightning", False, []),
        ("import colorsys\nimport own\nimport plain", True, ["colorsys"]),
        ("import os\nos.environ['HEAVY_MODE'] = '1'\nimport heavy", True, []),
        ("import no_such_library\nimport heavy", True, []),
        ("this is no python", True, []),
    ],
)
def test_installed_libraries_that_the_script_imports_first_are_loaded(
    tmp_path: Path, script: str, imports: bool, expected: list[str]
) -> None:
    found = load(tmp_path, script, imports=imports)
    assert (found.unfit, found.loaded) == ({}, expected)
    assert found.argv == [str(tmp_path / "script.py"), "--x"]


def test_what_a_library_looks_for_in_the_environment_is_known(tmp_path: Path) -> None:
    assert "HEAVY_MODE" in load(tmp_path, "", modules=["heavy"]).looked


def test_a_library_that_looks_for_the_rank_is_left_to_workers_without_what_it_needs(
    tmp_path: Path,
) -> None:
    found = load(tmp_path, "import ranked, keeper\nfrom ranked import rank", imports=True)
    assert (found.unfit, found.loaded) == ({}, ["heavy"])
    assert found.notes.count("left to workers, because they read the rank: import ranked") == 1


SETTLE = """
import os
from holdfast import rank
from holdfast.agent import late_rank
import noting
noted = noting.rank_zero_only.rank
assert type(noted) is late_rank.LateRank and "guessing" not in sys.modules
assert (noted == 0) and not noted and f"{noted:02d} {noted}" == "00 0" and [7][noted] == 7
os.environ["RANK"] = "3"
late_rank.settle()
assert type(noting.rank_zero_only.rank) is int and noting.rank_zero_only.rank == 3
assert (noted == 3, noted > 2, noted + 1, int(noted), str(noted)) == (True, True, 4, 3, "3")
noting.rank_zero_only.rank = 5  # by a trainer
late_rank.settle()
assert noting.rank_zero_only.rank == 5
"""


def test_a_library_that_only_notes_the_rank_is_loaded_and_notes_it_later(tmp_path: Path) -> None:
    found = load(tmp_path, "import noting, guessing", after=SETTLE, imports=True)
    assert (found.unfit, found.loaded) == ({}, ["noting"])
    assert "import guessing" in found.notes


def test_libraries_that_cannot_live_in_a_process_that_forks_are_named(tmp_path: Path) -> None:
    found = load(tmp_path, "", modules=["busy", "once", "broken", "quits", "heavy"])
    assert "reads the rank" in found.unfit.pop("once")
    assert found.unfit == {"busy": "it starts threads that do not exit (python)"}
    assert "ValueError: no" in found.notes


def test_threads_that_are_prepared_for_a_fork_are_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy brings OpenBLAS, which starts one thread per core while it is loaded."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "4")
    assert load(tmp_path, "", modules=["numpy"]).unfit == {}


def test_what_the_framework_needs_is_never_left_out(tmp_path: Path) -> None:
    found = load(tmp_path, "", framework=["busy"], modules=["heavy"])
    assert (found.unfit, found.loaded) == ({}, ["heavy", "busy"])


def test_what_is_known_to_be_unfit_is_not_loaded_again(tmp_path: Path) -> None:
    found = load(tmp_path, "import busy, heavy", imports=True, without=["busy"])
    assert (found.unfit, found.loaded) == ({}, ["heavy"])


def test_a_module_that_loads_the_driver_of_a_gpu_is_done_without(tmp_path: Path) -> None:
    """No child of this process could use a GPU any more."""
    torch = tmp_path / "site-packages/torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("import torch.cuda")
    (torch / "cuda.py").write_text(CUDA)
    (torch / "counts.py").write_text("import torch; torch.cuda.device_count()")
    found = load(tmp_path, "", framework=["torch"], modules=["heavy", "torch.counts"])
    assert found.unfit == {"torch.counts": "it initializes a GPU at import"}


COMPILES = """
from torch._inductor import codecache, cpu_vec_isa
assert cpu_vec_isa.valid_vec_isa_list.cache_info().currsize == 1
assert codecache.CacheBase.get_system.cache_info().currsize == 1
assert "torch._inductor.compile_fx" in sys.modules
"""


@long
@pytest.mark.slow
def test_what_a_compiler_finds_out_about_the_machine_is_known_to_whoever_is_forked(
    tmp_path: Path,
) -> None:
    found = load(tmp_path, "", COMPILES, modules=["holdfast.train.compiler_ahead"])
    assert found.unfit == {}
    assert found.notes == ""


@long
@pytest.mark.slow
def test_a_worker_that_ends_does_not_take_pytorch_apart(tmp_path: Path) -> None:
    """What the script has registered itself is removed as ever."""
    kept = "library = torch.library.Library('ours', 'DEF')"
    looks = (
        "import weakref; told = weakref.finalize._registry; before = set(told);"
        " preloading.keep_operators(); off = sum(not one.atexit for one in before);"
        f" {kept}; on = sum(one.atexit for one in set(told) - before); print(off > 100, on)"
    )
    source = f"import torch; from holdfast.agent import preloading; {looks}"
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True 1\n"
