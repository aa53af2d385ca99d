"""Each known problem is known by a real excerpt of a log, and by no other's."""

import mmap
import re
import sysconfig
import warnings
from pathlib import Path

import pytest

from holdfast.diagnosis.signatures import GROUPS, SIGNATURES, Blame, spotted
from holdfast.drivers.kubernetes.lint import CHECKS
from holdfast.errors import SLUGS
from tests.diagnosis.excerpts import THREAD, Excerpt, excerpts
from tests.diagnosis.provoked import APART, OTHERWISE, PROVOKED, provoke
from tests.patience import PATIENCE_S
from tests.tidy.source import ROOT
from tests.warm import PIPE, Script

EXCERPTS = excerpts()
ALL = [(slug, one) for slug, found in EXCERPTS.items() for one in found]
RECORDED = Path(__file__).parent / "recorded"
PUBLIC_SOURCE = re.compile(r"[\w.-]+/[\w.-]+ \S+")
RAN = re.compile(r"ran: .+ \(.+\)")
VARIES = re.compile(r"\d+|/\S+")
MESSAGE = re.compile(r"[\d'\"\[\](){}<>/:,.`]+")  # what stands between parts of a message
PART_CHARS, PARTS = 20, 3


def lines_of(slug: str) -> list[str]:
    return [line for one in EXCERPTS[slug] for line in one.lines]


def names(lines: list[str]) -> list[str]:
    return [one.signature.slug for one in spotted(lines)]


def of_kind(kind: str) -> list[tuple[str, Excerpt, str]]:
    """Excerpts of sources of a kind, each with the rest of its source."""
    return [
        (slug, one, one.source.removeprefix(f"{kind} "))
        for slug, one in ALL
        if one.source.startswith(f"{kind} ")
    ]


INSTALLED = [
    (slug, one, one.source.partition(" ")[2])
    for slug, one in ALL
    if re.fullmatch(r"[a-z_]+ \S+", one.source) and not one.source.startswith(("rec", "prov"))
]


def test_every_known_problem_has_an_excerpt_and_there_are_enough_of_them() -> None:
    assert EXCERPTS.keys() == SIGNATURES.keys()
    assert len(SIGNATURES) >= 195
    assert len(SIGNATURES) == sum(len(group) for group in GROUPS.values()), "a slug occurs once"


def test_every_excerpt_says_where_it_comes_from() -> None:
    checked = [*of_kind("recorded"), *of_kind("provoked"), *INSTALLED]
    known = [one for _, one, _ in checked]
    ways = (THREAD, PUBLIC_SOURCE, RAN)
    public = [one for _, one in ALL if any(way.fullmatch(one.source) for way in ways)]
    assert [one.source for _, one in ALL if one not in known and one not in public] == []
    assert all(EXCERPTS[slug] and all(one.lines for one in EXCERPTS[slug]) for slug in EXCERPTS)


@pytest.mark.parametrize("slug", SIGNATURES)
def test_it_is_found_in_each_of_its_excerpts_and_nothing_else_is(slug: str) -> None:
    for one in EXCERPTS[slug]:
        assert names(one.lines) == [slug], one


@pytest.mark.parametrize(("slug", "one", "name"), of_kind("recorded"))
def test_what_was_recorded_is_in_its_file(slug: str, one: Excerpt, name: str) -> None:
    text = (RECORDED / name).read_text(errors="replace")
    assert [line for line in one.lines if line not in text] == [], slug


@pytest.mark.parametrize(("slug", "one", "name"), of_kind("provoked"))
def test_installed_libraries_still_say_so(
    slug: str, one: Excerpt, name: str, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = said_by(name, tmp_path)
    if not OTHERWISE.get(name, True):
        pytest.skip(f"this build of PyTorch, or this Python, says: {said}")
    assert [line for line in one.lines if alike(line) not in alike(said)] == [], said
    assert names(said.splitlines())[0] == slug, said


def said_by(name: str, folder: Path) -> str:
    """What Python prints last of the exception that is provoked."""
    if name not in APART:
        return provoke(name, folder)
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
    script += f"from tests.diagnosis import provoked; provoked.tell({name!r}, {str(folder)!r})"
    said: str = Script([script], stdout=PIPE, text=True).communicate(timeout=PATIENCE_S)[0]
    return said


def alike(text: str) -> str:
    """Without numbers and paths, which differ each time."""
    return VARIES.sub("", text)


def test_every_way_to_provoke_a_message_is_an_excerpt() -> None:
    assert {name for _, _, name in of_kind("provoked")} == PROVOKED.keys()


@pytest.mark.parametrize(("slug", "one", "path"), INSTALLED)
def test_what_an_installed_library_prints_is_in_its_file(
    slug: str, one: Excerpt, path: str
) -> None:
    kinds = {"python": "stdlib", "holdfast": ""}
    kind = kinds.get(one.source.partition(" ")[0], "purelib")
    (file,) = (Path(sysconfig.get_path(kind)) if kind else ROOT).glob(path)
    parts = [part.strip() for line in one.lines for part in MESSAGE.split(line)]
    longest = sorted(parts, key=len, reverse=True)[:PARTS]
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
        assert any(text.find(part[:PART_CHARS].encode()) >= 0 for part in longest), (slug, longest)


@pytest.mark.parametrize("slug", SIGNATURES)
def test_it_says_whose_fault_it_is_what_happened_and_what_to_do(slug: str) -> None:
    one = SIGNATURES[slug]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", one.slug)
    assert one.cause.endswith(".") and len(one.cause) < 160
    assert one.remedy.endswith(".") and len(one.remedy) < 400


def test_a_cause_comes_before_its_consequences_whatever_was_printed_first() -> None:
    log = [*lines_of("gloo-peer-closed"), *lines_of("child-failed"), *lines_of("gpu-memory")]
    found = [one.signature.slug for one in spotted(log)]
    assert found == ["gpu-memory", "gloo-peer-closed", "child-failed"]


def test_the_first_of_many_lines_is_shown_with_their_count() -> None:
    line = lines_of("nccl-timeout")[0]
    [one] = spotted(["epoch 1", *[f"  {line}"] * 16])
    assert (one.line, one.lines, one.text) == (2, 16, line)


@pytest.mark.parametrize("file", sorted((RECORDED / "environment").iterdir()), ids=str)
def test_whatever_a_script_depends_on_its_failure_is_known(file: Path) -> None:
    assert names(file.read_text().splitlines())


def test_of_ranks_that_lose_each_other_the_one_without_memory_is_named() -> None:
    """NVIDIA/nccl#1235: rank 3 could not allocate, and rank 0 printed first."""
    log = [
        *EXCERPTS["nccl-peer-closed"][2].lines,
        "ng30903:3063028:3066152 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'",
        *EXCERPTS["nccl-internal-error"][0].lines,
    ]
    assert names(log) == ["gpu-memory", "nccl-internal-error", "nccl-peer-closed"]


def test_a_launcher_that_cannot_resolve_a_name_is_a_problem_of_names() -> None:
    """kubeflow/mpi-operator#481."""
    log = [
        "ssh: Could not resolve hostname tensorflow-benchmarks-worker-0.tensorflow-benchmarks-"
        "worker: Name or service not known",
        "ORTE was unable to reliably start one or more daemons.",
    ]
    assert names(log) == ["name-resolution", "mpi-daemons"]


def test_a_shared_memory_that_is_full_comes_before_what_nccl_makes_of_it() -> None:
    """pytorch/ci-infra#490."""
    log = [
        "[2026-04-22 21:34:20] mt-workflow:202016:202235 [0] misc/shmutils.cc:88 NCCL WARN Error: "
        "failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device "
        "(28)",
        "[2026-04-22 21:34:20] mt-workflow:202016:202238 [2] proxy.cc:1326 NCCL WARN Socket recv "
        "failed while polling for opId=0x7f6f18cb7f40",
    ]
    assert names(log) == ["nccl-shared-memory", "nccl-peer-closed"]


def test_a_transfer_that_timed_out_comes_before_those_that_were_dropped_after_it() -> None:
    """NVIDIA/nccl#1814."""
    log = [*EXCERPTS["nccl-ib-flushed"][0].lines, *EXCERPTS["nccl-ib-retry-exceeded"][0].lines]
    assert names(log) == ["nccl-ib-retry-exceeded", "nccl-ib-flushed"]


def test_what_ended_a_launcher_comes_before_that_it_ended_the_rest() -> None:
    """deepspeedai/DeepSpeed#3232."""
    log = [
        "[2023-04-14 13:11:27,879] [INFO] [launch.py:428:sigkill_handler] Killing subprocess 13266",
        "'/content/DeepSpeedExamples/applications/DeepSpeed-Chat/output'] exits with return code = "
        "-9",
    ]
    assert names(log) == ["killed-by-signal", "child-failed"]


def test_memory_comes_before_that_slurm_ended_the_tasks_for_it() -> None:
    """ZwwWayne/K-Net#30."""
    log = [
        "srun: launch/slurm: _step_signal: Terminating StepId=9411285.0",
        "slurmstepd-gpu20-15: error: *** STEP 9411285.0 ON gpu20-15 CANCELLED AT "
        "2022-05-17T17:58:10 ***",
        "slurmstepd-gpu20-15: error: Detected 1 oom-kill event(s) in StepId=9411285.batch. Some of "
        "your processes may have been killed by the cgroup out-of-memory handler.",
    ]
    assert names(log) == ["host-memory", "slurm-cancelled"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_that_failed_is_explained_by_what_failed_in_it(
    tmp_path: Path,
) -> None:
    said = provoke("checkpoint_without_a_key", tmp_path).splitlines()
    found = ["distributed-checkpoint-mismatch", "distributed-checkpoint-failed"]
    assert names(said) == found


def test_a_machine_is_blamed_only_for_what_the_text_proves() -> None:
    """For everything else the program, its versions or its settings are a likelier reason."""
    blamed = {one.slug for one in SIGNATURES.values() if one.blame is Blame.MACHINE}
    gpu = {"gpu-ecc-error", "gpu-fell-off-the-bus", "gpu-xid", "gpu-not-initialised"}
    links = {"nvlink-error", "fabric-manager"}
    assert blamed == gpu | links | {"driver-mismatch", "container-no-driver"}


@pytest.mark.parametrize(
    ("number", "blame"),
    [(13, "code"), (31, "code"), (43, "code"), (45, "consequence")]
    + [(number, "machine") for number in (48, 64, 74, 79, 94, 95, 119, 131, 143, 145, 313)],
)
def test_an_xid_that_a_program_causes_is_not_the_machines(number: int, blame: str) -> None:
    line = f"[2.1] NVRM: Xid (PCI:0000:cb:00): {number}, pid=1797828, name=pt_main_thread, Ch 8"
    assert [one.signature.blame.value for one in spotted([line])] == [blame]


@pytest.mark.parametrize(
    "line",
    [
        "[Service thread] Connection closed by localRank 0",
        "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:10.1.0.1<0>",
        "NCCL INFO Call to connect returned Connection timed out, retrying",
        "step 120 loss 2.3150 grad_norm 0.913 tokens/s 51200",
        "Epoch 3: 100%|██████████| 1563/1563 [02:11<00:00, 11.91it/s, loss=0.312]",
        "NCCL INFO Bootstrap : Using eth0:10.0.0.4<0>",
        "NCCL INFO NET/OFI Selected Provider is efa",
        "UserWarning: The given NumPy array is not writable",
        "INFO:root:saving checkpoint to /ckpt/step-100",
        "[rank0]: joined a process group of 8 ranks over nccl",
        "connecting to tracker at 10.0.0.1:9091",
        "Flash Attention 2.0 only supports torch.float16 and torch.bfloat16 dtypes, but the "
        "current dype in Qwen2ForCausalLM is torch.float32.",
        "Runtime error during autotuning: No valid triton configs. OutOfResources: out of "
        "resource: shared memory, Required: 131072, Hardware limit: 101376. Ignoring this choice.",
        "[launch.py:347:main] Process 4711 exits successfully.",
        "'--deepspeed', 'ds.json'] exits with return code = 0",
        "oom_kill 0",
        "Failed to load image Python extension: 'libc10_cuda.so: cannot open shared object file: "
        "No such file or directory'",
        "NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin.",
        "number of parameters is divisible by tensor parallel ranks: yes",
        "Warning: Permanently added 'worker-0' (ED25519) to the list of known hosts.",
        "Loaded distributed checkpoint of step 100 on ranks 0-7",
        "srun: job 608 has been allocated resources",
        "nvidia-container-cli: 1.14.3",
        "GPU 0: NVLink 4: <inactive>, uncorrectable errors 0",
        "[W916 22:10:29.337089000 ProcessGroupGloo.cpp:547] Warning: Unable to resolve hostname to "
        "a (local) address. Using the loopback address as fallback. Manually set the network "
        "interface to bind to with GLOO_SOCKET_IFNAME. (function operator())",
        "",
    ],
)
def test_what_a_healthy_job_prints_is_no_problem(line: str) -> None:
    assert spotted([line]) == []


def test_a_name_stands_for_one_thing_for_holdfast_explain() -> None:
    assert not SIGNATURES.keys() & (SLUGS.keys() | CHECKS.keys())


def test_consequences_are_not_blamed_on_anybody() -> None:
    assert {one.blame for one in SIGNATURES.values()} == set(Blame)
