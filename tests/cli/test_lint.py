"""`holdfast lint` as a process: what it prints, its exit status, files that it cannot read."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.warm import holdfast

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {hostNetwork: @@}\n"
GOOD, BAD = POD.replace("@@", "false"), POD.replace("@@", "true")
BUDGET = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b}\nspec: {}\n"


def lint(*words: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    return holdfast("lint", *words, given=given)


def test_a_clean_file_has_status_0(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(GOOD)
    run = lint(str(tmp_path / "pod.yaml"))
    assert (run.returncode, run.stdout) == (0, "1 object: 0 errors, 0 warnings\n")


def test_an_error_has_status_2_and_says_where_why_and_what_helps(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(BAD)
    run = lint(str(file))
    assert run.returncode == 2
    head, why, help_, total = run.stdout.splitlines()
    assert head == (
        f"error[host-network-dns]: {file}: Pod/a spec.dnsPolicy: is ClusterFirst with hostNetwork"
    )
    assert why.startswith("  why: with the machine's network")
    assert help_.startswith("  help: set dnsPolicy")
    assert total == "1 object: 1 error, 0 warnings"


def test_warnings_alone_have_status_0() -> None:
    run = lint("-", given=BUDGET)
    assert run.returncode == 0
    assert run.stdout.startswith("warning[budget-protects-the-dead]: standard input: ")


def test_several_files_are_looked_at_one_by_one(tmp_path: Path) -> None:
    names = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for name in names:
        name.write_text(GOOD)
    assert lint(*map(str, names)).stdout == "2 objects: 0 errors, 0 warnings\n"
    assert "error[object-twice]" in lint("-", given=f"{GOOD}---\n{GOOD}").stdout


def test_what_many_objects_share_is_told_once() -> None:
    pods = "---\n".join(BAD.replace("name: a", f"name: a-{i}") for i in range(40))
    run = lint("-", given=pods)
    assert run.stdout.count("error[host-network-dns]") == 1
    assert "Pod/a-0 (and 39 more) spec.dnsPolicy" in run.stdout
    assert run.stdout.endswith("40 objects: 40 errors, 0 warnings\n")


def test_json_has_every_finding(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(BAD)
    run = lint(str(tmp_path / "pod.yaml"), "--json")
    found = json.loads(run.stdout)
    assert (found["error_count"], found["warning_count"], run.returncode) == (1, 0, 2)
    assert found["findings"][0]["slug"] == "host-network-dns"
    assert set(found["findings"][0]) == {
        "file", "slug", "level", "kind", "name", "path", "what", "why", "help",
    }  # fmt: skip


def test_a_list_is_its_items() -> None:
    item = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {}})
    run = lint("-", given=f"apiVersion: v1\nkind: List\nitems: [{item}]\n")
    assert "error[object-unnamed]" in run.stdout


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [1", "line 2"),
        ("", "it contains no objects"),
        ("# nothing\n---\n", "it contains no objects"),
        ("just words", "is not a mapping"),
        ("kind: Pod\nkind: Job\n", "the key 'kind' (line 2): duplicate key, first on line 1"),
        ("a: !!python/object:os.system {}", "python/object:os.system' is not supported"),
        ("\x00", "it is not YAML"),
    ],
)
def test_what_is_no_manifest_is_an_error_in_our_form(text: str, why: str) -> None:
    run = lint("-", given=text)
    assert run.returncode == 2
    assert run.stderr.startswith("error[manifest-unreadable]: cannot read manifests from standard")
    assert why in run.stderr
    assert "Traceback" not in run.stderr


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    assert "No such file" in lint(str(tmp_path / "none.yaml")).stderr
    assert "Is a directory" in lint(str(tmp_path)).stderr


def test_explain_knows_the_checks() -> None:
    run = holdfast("explain", "warning[shm-missing]", "--json")
    found = json.loads(run.stdout)
    assert (found["slug"], found["exit_status"]) == ("shm-missing", 0)
    assert "64 MiB" in found["explanation"]


def test_a_version_that_is_none_is_refused() -> None:
    run = lint("-", "--kubernetes-version", "new", given=GOOD)
    assert (run.returncode, run.stderr.splitlines()[0]) == (
        2,
        "error[usage]: --kubernetes-version new is not supported",
    )
