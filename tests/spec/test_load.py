"""Loading a job: every problem at once, with its path, its line and the key that was meant."""

import json
from pathlib import Path

import pytest
import yaml

from holdfast.errors import Error
from holdfast.spec import Job, job_from_dict, job_from_yaml
from holdfast.spec.load import job_from_text, job_schema, to_yaml


def write(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def why(folder: Path, text: str) -> str:
    with pytest.raises(Error) as caught:
        job_from_yaml(write(folder, text))
    assert caught.value.slug == "job-invalid"
    return caught.value.why


def test_a_small_file_is_enough(tmp_path: Path) -> None:
    job = job_from_yaml(write(tmp_path, "name: gpt\nscript: train.py\n"))
    assert (job.name, job.nodes.count, job.nodes.spares) == ("gpt", 1, 0)


def test_paths_are_relative_to_the_folder_of_the_file(tmp_path: Path) -> None:
    text = "name: gpt\nscript: src/train.py\nworkdir: data\n"
    job = job_from_yaml(write(tmp_path, text))
    assert job.script == str(tmp_path / "src/train.py")
    assert job.workdir == str(tmp_path / "data")


def test_absolute_paths_stay(tmp_path: Path) -> None:
    job = job_from_yaml(write(tmp_path, "name: gpt\nscript: /srv/train.py\nworkdir: /srv\n"))
    assert (job.script, job.workdir) == ("/srv/train.py", "/srv")


def test_a_plain_number_of_nodes_is_short_for_count(tmp_path: Path) -> None:
    assert job_from_yaml(write(tmp_path, "name: a\nscript: b\nnodes: 3\n")).nodes.count == 3
    for wrong in ("1e400", "1.5", "two", "[2]"):
        told = why(tmp_path, f"name: a\nscript: b\nnodes: {wrong}\n")
        assert "nodes (line 3): must be a whole number" in told


def test_every_problem_is_told_at_once_with_path_and_line(tmp_path: Path) -> None:
    told = why(
        tmp_path,
        "name: GPT_2\n"
        "scrip: train.py\n"
        "args: [--lr, 0.5]\n"
        "nodes: {count: 0, spare: 1}\n"
        "recovery:\n"
        "  window_s: -1\n"
        "  max_restarts: many\n"
        "workers_per_node: some\n"
        "logs: 3\n",
    )
    for expected in (
        "job: give exactly one of script, module, command",
        "name (line 1): must be lower-case letters, digits and dashes",
        "scrip (line 2): unknown key; did you mean script?",
        'args[1] (line 3): must be text; write it in quotes: "0.5"',
        "nodes.count (line 4): must be greater than or equal to 1",
        "nodes.spare (line 4): unknown key; did you mean spares?",
        "recovery.window_s (line 6): must be greater than 0",
        "recovery.max_restarts (line 7): must be a whole number",
        "workers_per_node (line 8): must be a whole number or 'auto'",
        "logs (line 9): must be a section of `key: value` lines",
    ):
        assert expected in told


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("image: {nme: a}", "image.nme (line 3): unknown key; did you mean name?"),
        ("secrets: [{name: a, evn: {A: a}}]", "secrets[0].evn (line 3): unknown key"),
        ("secrets: [{name: a}]", "set at least one of env, all_env and path"),
        ("command: []", "command (line 3): must not be empty"),
        ("resources: {cpu: many}", "resources.cpu (line 3)"),
        ("datasets: [{name: a, path: /a, pvc: a, host_path: /b}]", "pvc and host_path"),
        (
            "checkpoints: {local: {host_path: /a, pvc_class: b}}",
            "exactly one of host_path and pvc_class",
        ),
        ("sweep: {trials: 2, parallel: 3}", "parallel is larger than trials"),
        ("checkpoints: {archive: {url: bucket/runs}}", "must match pattern"),
        ("checkpoints: {archive: {url: 'file:///mnt/runs'}}", "for a folder use"),
        ("checkpoints: {archive: {url: 'memory://runs'}}", "is not durable"),
        ("checkpoints: {archive: {url: 'https://host/runs'}}", "it is read-only"),
        ("schedule: {cron: daily}", "schedule.cron (line 3)"),
    ],
)
def test_sections_for_clusters_are_as_strict(tmp_path: Path, section: str, told: str) -> None:
    assert told in why(tmp_path, f"name: a\nscript: b\n{section}\n")


def test_batches_are_left_out_only_where_a_number_is_always_the_same_batch(tmp_path: Path) -> None:
    text = "name: a\nscript: b\nrecovery: {{skip_batches: {}}}\nelasticity: {{min_nodes: 1{}}}\n"
    told = why(tmp_path, text.format(3, ", batch: scale_lr"))
    assert "recovery.skip_batches requires elasticity.batch: keep_global_batch" in told
    for fine in (text.format(3, ""), text.format(0, ", batch: scale_lr")):
        job_from_text(fine, where="x")


def test_a_step_timeout_is_not_silently_without_effect(tmp_path: Path) -> None:
    text = "name: a\nscript: b\nrecovery: {{hangs: {}, step_timeout_s: 5}}\n"
    assert "step_timeout_s has no effect with hangs: off" in why(tmp_path, text.format("off"))
    job_from_text(text.format("auto"), where="x")


def test_a_duplicate_key_is_an_error(tmp_path: Path) -> None:
    told = why(tmp_path, "name: a\nscript: b\nrecovery:\n  window_s: 1\n  window_s: 2\n")
    assert told == "recovery.window_s (line 5): duplicate key, first on line 4; keep one"


@pytest.mark.parametrize("given", [("script", "module"), ("script", "command")])
def test_two_programs_are_refused(tmp_path: Path, given: tuple[str, str]) -> None:
    values = {"script": "a.py", "module": "a", "command": ["a"]}
    text = yaml.safe_dump({"name": "a", **{key: values[key] for key in given}})
    assert f"found {given[0]} and {given[1]}" in why(tmp_path, text)


@pytest.mark.parametrize("name", ["-c", "a b", "a..b", "", ".a", "a.", "a/b", "a\n"])
def test_what_python_cannot_find_is_no_module(tmp_path: Path, name: str) -> None:
    told = why(tmp_path, yaml.safe_dump({"name": "a", "module": name}))
    assert "must be the name of a module" in told


def test_modules_are_named_as_python_finds_them() -> None:
    for name in ("train", "my_package.train", "with-dash", "größe.x"):
        assert Job(name="a", module=name).module == name


@pytest.mark.parametrize("word", ["y", "n", "0", "1", "'true'", "1.0", "null"])
@pytest.mark.parametrize("key", ["warm: {preload_imports", "snapshots: {beside"])
def test_a_switch_is_true_or_false_and_nothing_like_it(tmp_path: Path, key: str, word: str) -> None:
    told = why(tmp_path, f"name: a\nscript: b\n{key}: {word}}}\n")
    assert "(line 3): must be true or false" in told


def test_a_key_that_is_like_no_other_gets_the_list_of_keys(tmp_path: Path) -> None:
    told = why(tmp_path, "name: a\nscript: b\nwarm: {zzz: 1}\n")
    assert "warm.zzz (line 3): unknown key; known keys: mode, preload" in told


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [", "line 2, column 1"),
        ("- 1\n- 2\n", "`key: value` lines are expected"),
        ("", "`key: value` lines are expected"),
        ("name: a\n---\nname: b\n", "more than one document"),
        ("name: [" + "[" * 5000, "nested too deeply (line 1)"),
        ("name: a\nx: &a\n  y: *a\n", "the alias 'a' refers to a node that contains it (line 3)"),
        ("? [a, b]\n: 1\n", "a key must be text (line 1)"),
        ("name: a\nnodes:\n\tcount: 2\n", "(line 3, column 1): it is a tab, and YAML takes only"),
    ],
)
def test_what_is_not_yaml_is_said_with_its_place(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(Error) as caught:
        job_from_yaml(write(tmp_path, text))
    assert caught.value.slug == "job-file-unreadable"
    assert part in caught.value.why


def test_a_missing_file_a_folder_and_bytes_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"name: \xff\xfe")
    for path, part in (
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "bytes.yaml", "not UTF-8"),
    ):
        with pytest.raises(Error, match="cannot read the job file") as caught:
            job_from_yaml(path)
        assert part in caught.value.why


def test_a_dict_names_its_origin_in_the_message() -> None:
    with pytest.raises(Error, match="the command line: 1 problem"):
        job_from_dict({"name": "a"}, where="the command line")


def test_a_job_survives_yaml_unchanged(tmp_path: Path) -> None:
    job = job_from_dict(
        {
            "name": "gpt",
            "script": "/srv/train.py",
            "workdir": "/srv",
            "args": ["--lr", "3e-4", "yes", "0x1f"],
            "env": {"A": "1"},
            "nodes": {"count": 2, "spares": 1},
            "recovery": {"max_restarts": 0},
        },
        where="test",
    )
    assert job_from_yaml(write(tmp_path, to_yaml(job))) == job


def test_the_schema_describes_every_key_by_the_docstring_below_it() -> None:
    schema = job_schema()
    parts = {"Job": schema, **schema["$defs"]}
    bare = [
        f"{name}.{key}"
        for name, part in parts.items()
        for key, field in part["properties"].items()
        if not field.get("description")
    ]
    assert bare == []
    recovery = schema["$defs"]["Recovery"]["properties"]
    assert recovery["window_s"]["description"] == (
        "Length of the sliding window in which restarts are counted."
    )
    mode = schema["$defs"]["Warm"]["properties"]["mode"]["description"]
    assert "`imports` only imports modules;" in mode


def test_the_schema_knows_every_key_and_the_short_form() -> None:
    schema = job_schema()
    assert set(schema["properties"]) == set(Job.model_fields)
    assert {"type": "integer", "minimum": 1, "maximum": 100_000} in (
        schema["properties"]["nodes"]["anyOf"]
    )
    assert schema["additionalProperties"] is False
    json.dumps(schema)


@pytest.mark.parametrize(
    ("section", "what"),
    [
        (r"{step_pattern: '(\d+'}", "step_pattern (line 3): is not a valid regular expression: m"),
        ("{step_pattern: 'step'}", r"has no group; mark the number, as in step (?P<step>\S+)"),
        ("{loss_pattern: '(a)(b)'}", "progress.loss_pattern (line 3): has 2 groups; mark"),
        ("{loss_pattern: '(?P<step>a)(b)'}", "has 2 groups"),
        ("{}", "progress (line 3): set at least one of step_pattern, loss_pattern"),
        ("{file: p.json, step_pattern: '(x)'}", "set either patterns or file"),
        ("{step_patern: '(x)'}", "did you mean step_pattern?"),
    ],
)
def test_a_pattern_that_cannot_find_a_number_is_refused(
    tmp_path: Path, section: str, what: str
) -> None:
    assert what in why(tmp_path, f"name: j\nscript: s.py\nprogress: {section}\n")


def test_a_pattern_has_one_group_or_one_of_its_name(tmp_path: Path) -> None:
    text = "name: j\nscript: s.py\nprogress:\n  step_pattern: 'step (\\d+)'\n"
    job = job_from_yaml(write(tmp_path, text + "  loss_pattern: '(a|b) (?P<loss>\\S+)'\n"))
    assert job.progress is not None
    assert job.progress.step_pattern == r"step (\d+)"
    assert job.progress.loss_pattern == r"(a|b) (?P<loss>\S+)"
