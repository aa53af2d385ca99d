"""Errors of networks, services and file systems are told apart from those of the script."""

from pathlib import Path

import pytest

from holdfast.diagnosis import parse_traceback, weigh
from holdfast.diagnosis.environment import has_changed, is_environment, slug_of
from holdfast.errors import Error
from holdfast.events import Progress, WorkerError, WorkerExited

RECORDED = Path(__file__).parent / "recorded"  # see services.py


def files(folder: str) -> list[Path]:
    found = sorted((RECORDED / folder).glob("*.txt"))
    assert found
    return found


def error_in(file: Path) -> WorkerError:
    error = parse_traceback(file.read_text())
    assert error is not None
    return error


def cause_of(error: WorkerError) -> str:
    one = WorkerExited(
        node="a", attempt=1, rank=0, exit_code=1, progress=Progress(step=3), error=error
    )
    return weigh([one]).cause


def error(kind: str, message: str) -> WorkerError:
    return WorkerError(type=kind, message=message, file="/home/me/train.py", line=7)


@pytest.mark.parametrize("file", files("environment"), ids=lambda file: file.stem)
def test_what_libraries_raise_when_a_service_fails_is_of_the_environment(file: Path) -> None:
    assert cause_of(error_in(file)) == "environment"


@pytest.mark.parametrize("file", files("ours"), ids=lambda file: file.stem)
def test_what_only_looks_similar_is_the_scripts(file: Path) -> None:
    assert cause_of(error_in(file)) == "worker-exception"


@pytest.mark.parametrize("file", files("unclear"), ids=lambda file: file.stem)
def test_what_may_be_either_is_the_scripts_unless_the_same_worked_before(file: Path) -> None:
    error = error_in(file)
    assert cause_of(error) == "worker-exception"
    assert has_changed(error, begins=True)
    assert has_changed(error, begins=False) == ("expired" in file.stem), "a file is not there now"


@pytest.mark.parametrize("file", files("ours"), ids=lambda file: file.stem)
def test_no_error_of_the_script_is_excused_because_it_worked_before(file: Path) -> None:
    assert not has_changed(error_in(file), begins=True)


@pytest.mark.parametrize("file", files("killed"), ids=lambda file: file.stem)
def test_a_process_of_a_data_loader_that_a_signal_ended_was_killed(file: Path) -> None:
    assert cause_of(error_in(file)) == "worker-killed"


SAID = [  # by libraries that are not installed here, as users report it
    ("grpc._channel._InactiveRpcError", "<_InactiveRpcError\n\tstatus = StatusCode.UNAVAILABLE"),
    ("httpx.HTTPStatusError", "Server error '502 Bad Gateway' for url 'https://x/'"),
    ("huggingface_hub.errors.HfHubHTTPError", "504 Server Error: Gateway Time-out for url"),
    ("OSError", "When reading: AWS Error NETWORK_CONNECTION during HeadObject operation"),
    ("google.api_core.exceptions.ServiceUnavailable", "503 GET https://storage: We encountered"),
    ("RuntimeError", "cannot read shard-1: [Errno 104] Connection reset by peer"),
    (
        "azure.core.exceptions.HttpResponseError",
        "Operation returned an invalid status 'Bad Gateway'\nErrorCode:None",
    ),
    (
        "botocore.exceptions.ClientError",
        "An error occurred (ExpiredToken) when calling the GetObject operation: The provided token "
        "has expired.",
    ),
]  # fmt: skip
NOT_SAID = [
    ("huggingface_hub.errors.HfHubHTTPError", "404 Client Error. (Request ID: 500) Not Found"),
    ("requests.exceptions.SSLError", "CERTIFICATE_VERIFY_FAILED: certificate has expired"),
    ("ValueError", "[Errno 104] is not a number"),
    ("PermissionError", "[Errno 13] Permission denied: '/data'"),
    (
        "azure.core.exceptions.HttpResponseError",
        "Operation returned an invalid status 'Forbidden'\nErrorCode:AuthenticationFailed",
    ),
    ("RuntimeError", "the network has 5 layers and expected 503 inputs"),
    ("OSError", "[Errno 28] No space left on device"),
]


@pytest.mark.parametrize(("kind", "message"), SAID)
def test_phrases_of_other_libraries(kind: str, message: str) -> None:
    assert is_environment(error(kind, message))


@pytest.mark.parametrize(("kind", "message"), NOT_SAID)
def test_phrases_that_prove_nothing(kind: str, message: str) -> None:
    assert not is_environment(error(kind, message))


def ours(slug: str) -> WorkerError:
    said = str(Error(slug, "it failed", why="because", help="do this"))
    return error("holdfast.errors.Error", said)


def test_our_own_errors_of_storage_are_of_the_environment_unless_the_place_is_none() -> None:
    assert cause_of(ours("storage-unreachable")) == "environment"
    assert cause_of(ours("storage-denied")) == "environment"
    assert cause_of(ours("storage-place")) == "worker-exception"
    assert slug_of(ours("storage-full")) == "storage-full"
    assert slug_of(error("ValueError", "error[storage-full]: x")) == ""


def test_a_loader_without_shared_memory_is_told_what_to_enlarge() -> None:
    text = (RECORDED / "killed" / "loader_worker_bus_error.txt").read_text()
    found = parse_traceback(text)
    assert found is not None
    one = WorkerExited(node="a", attempt=1, rank=2, exit_code=1, error=found)
    summary = weigh([one]).summary
    assert summary.startswith("Rank 2 failed with RuntimeError: DataLoader worker (pid")
    assert "/dev/shm" in summary


def test_a_loader_that_lost_its_details_is_the_scripts() -> None:
    said = "DataLoader worker (pid 7) exited unexpectedly with exit code 1. Details are lost"
    assert cause_of(error("RuntimeError", said)) == "worker-exception"
