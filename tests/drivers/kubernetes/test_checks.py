"""What is wrong with a job for a cluster is refused, with the place, the reason and a way out."""

from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests.checks import problems, require
from holdfast.drivers.kubernetes.manifests.checks.conflicts import KEYS
from holdfast.drivers.kubernetes.manifests.checks.frameworks import PLAIN
from holdfast.drivers.kubernetes.manifests.checks.naming import longest_name
from holdfast.drivers.kubernetes.manifests.checks.secrecy import looks_secret
from holdfast.drivers.kubernetes.manifests.engines import ENGINES as MAKERS
from holdfast.drivers.kubernetes.manifests.render import render
from holdfast.drivers.kubernetes.manifests.request import Request
from holdfast.errors import Error, ExitStatus
from holdfast.spec import Job, job_from_dict
from holdfast.spec.cluster import ENGINES, Engine, Mode
from tests.drivers.kubernetes.asking import asked


def told(engine: Engine = "job", mode: Mode = "managed", **keys: Any) -> list[tuple[str, str]]:
    """Slug and first word of every problem."""
    found = problems(asked(engine, mode, **keys))
    return [(error.slug, error.what.split()[0].rstrip(":")) for error in found]


def only(engine: Engine = "job", mode: Mode = "managed", **keys: Any) -> Error:
    """The one problem of this job."""
    (error,) = problems(asked(engine, mode, **keys))
    assert error.status == ExitStatus.USAGE
    return error


@pytest.mark.parametrize("engine", ENGINES)
def test_a_modest_job_is_fine_on_every_engine(engine: Engine) -> None:
    keys: dict[str, Any] = {"schedule": {"cron": "@daily"}} if engine == "cronjob" else {}
    assert told(engine, **keys) == []
    assert told(engine, "plain", framework=PLAIN[engine][0], **keys) == []
    assert set(MAKERS) == set(ENGINES)


def test_a_job_without_an_image_is_refused_and_rendered_by_nobody() -> None:
    job = job_from_dict({"name": "run", "script": "train.py"}, where="test")
    request = Request(job, "job", "managed")
    assert [error.slug for error in problems(request)] == ["image-missing"]
    with pytest.raises(Error, match="image-missing"):
        require(request)
    with pytest.raises(Error, match="image-missing"):
        render(request)


# ── engines and frameworks ────────────────────────────────────────────────────────────────────


def test_what_an_engine_cannot_honour_names_those_that_can() -> None:
    error = only("jobset", roles={"ps": 2})
    assert error.slug == "engine-unsupported"
    assert error.what == "roles: jobset in managed mode does not support it"
    assert error.help == "use tfjob with --mode plain, or remove roles"
    spares = only("job", "plain", nodes={"count": 2, "spares": 1})
    assert "trainjob, volcano with --mode managed" in spares.help
    warm = only("job", "plain", instrument="off")
    assert "any engine with --mode managed" in warm.help


@pytest.mark.parametrize(
    ("engine", "mode", "framework", "fits"),
    [
        ("tfjob", "plain", "tensorflow", True),
        ("tfjob", "plain", "pytorch", False),
        ("tfjob", "managed", "tensorflow", True),
        ("tfjob", "managed", "pytorch", True),
        ("job", "plain", "jax", False),
        ("job", "managed", "jax", True),
        ("pods", "managed", "mpi", True),
        ("trainjob", "plain", "jax", True),
        ("volcano", "plain", "mpi", True),
        ("pods", "plain", "mpi", False),
    ],
)
def test_a_framework_has_its_engines(
    engine: Engine, mode: Mode, framework: str, fits: bool
) -> None:
    expected = [] if fits else [("engine-unsupported", "framework")]
    assert told(engine, mode, framework=framework) == expected


def test_a_cronjob_needs_times_and_nobody_else_has_them() -> None:
    assert told("cronjob") == [("engine-unsupported", "schedule")]
    assert told("job", schedule={"cron": "@daily"}) == [("engine-unsupported", "schedule")]
    twice = told("cronjob", schedule={"cron": "@daily", "overlap": "Allow"})
    assert twice == [("settings-conflict", "schedule.overlap")]


def test_rights_on_machines_need_a_namespace() -> None:
    assert told(access={"cordon": True}) == [("engine-unsupported", "access.cordon")]
    assert told(namespace="team", access={"cordon": True}) == []


def test_the_kind_of_gang_has_to_fit_engine_and_version() -> None:
    assert "volcano, coscheduling" in only("mpijob", scheduling={"gang": "native"}).why
    assert told("mpijob", scheduling={"gang": "volcano"}) == []
    native = {"gang": "native"}
    assert only("pods", scheduling=native, version=(1, 34)).slug == "kubernetes-too-old"
    assert told("pods", scheduling=native, version=(1, 35)) == []
    assert "1.36" in only("jobset", scheduling=native, version=(1, 35)).what


def test_claims_need_kubernetes_1_34() -> None:
    claims = {"claims": [{"name": "g", "device_class": "gpu.nvidia.com"}]}
    assert told(resources=claims, version=(1, 33)) == [("kubernetes-too-old", "resources.claims")]
    assert told(resources=claims, version=(1, 34)) == []


# ── settings without effect ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("network.rdma_count", {"network": {"rdma_count": 2}}),
        ("network.efa_count", {"network": {"efa_count": 2}}),
        ("resources.gpu_resource", {"resources": {"gpu_resource": "amd.com/gpu"}}),
        ("checkpoints.shared.size", {"checkpoints": {"shared": {"pvc": "c", "size": "2Ti"}}}),
        ("scheduling.spare_priority_class", {"scheduling": {"spare_priority_class": "low"}}),
        ("scheduling.topology", {"scheduling": {"topology": "rack"}}),
        ("scheduling.queue", {"scheduling": {"queue": "team"}}),
        (
            "scheduling.gang_timeout_s",
            {"scheduling": {"gang": "native", "gang_timeout_s": 5}},
        ),
        (
            "datasets[0].size",
            {"datasets": [{"name": "d", "path": "/d", "pvc": "p", "size": "1Ti"}]},
        ),
        (
            "access.annotations",
            {"access": {"service_account": "mine", "annotations": {"a": "b"}}},
        ),
    ],
)
def test_a_setting_that_lacks_another_is_refused(path: str, keys: dict[str, Any]) -> None:
    assert told(**keys) == [("setting-idle", path)]


def test_workers_per_node_need_something_that_starts_them() -> None:
    assert told("job", "plain", command=["./run"], workers_per_node=4) == [
        ("setting-idle", "workers_per_node")
    ]
    assert told("job", "plain", workers_per_node=4) == []
    assert told("job", "managed", command=["./run"], workers_per_node=4) == []


# ── contradictions ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("engine", "mode", "framework", "name", "refused"),
    [
        ("job", "plain", "pytorch", "RANK", True),
        ("job", "managed", "pytorch", "MASTER_ADDR", True),
        ("job", "plain", "pytorch", "JOB_COMPLETION_INDEX", True),
        ("tfjob", "plain", "tensorflow", "TF_CONFIG", True),
        ("tfjob", "plain", "tensorflow", "RANK", False),
        ("jaxjob", "plain", "jax", "PROCESS_ID", True),
        ("pytorchjob", "plain", "pytorch", "PET_NNODES", True),
        ("job", "managed", "pytorch", "HOLDFAST_NODE", True),
        ("job", "managed", "pytorch", "TF_CONFIG", False),
    ],
)
def test_ranks_have_one_source(
    engine: Engine, mode: Mode, framework: str, name: str, refused: bool
) -> None:
    expected = [("settings-conflict", f"env.{name}")] if refused else []
    assert told(engine, mode, framework=framework, env={name: "1"}) == expected


@pytest.mark.parametrize(("name", "key"), KEYS.items())
def test_a_variable_that_holdfast_sets_is_refused_with_the_key_that_is_meant(
    name: str, key: str
) -> None:
    section, _, setting = key.partition(".")
    model = Job.model_fields[section].annotation
    assert not setting or setting in getattr(model, "model_fields")  # noqa: B009
    error = only(env={name: "1"})
    assert (error.slug, error.what) == (
        "settings-conflict",
        f"env.{name}: {name} would be set twice",
    )
    assert error.why == f"Holdfast sets it from the key {key} of the job file"
    assert error.help == f"remove env.{name} and set {key}"


def test_tls_is_not_a_variable_of_workers_and_is_set_by_an_overlay() -> None:
    error = only(env={"HOLDFAST_TLS": "/etc/holdfast-tls"})
    assert error.what == "env.HOLDFAST_TLS: agents and the controller would not get HOLDFAST_TLS"
    assert "set it with the key overlay" in error.help
    assert "name: HOLDFAST_TLS, value: /etc/holdfast-tls" in error.help


def test_other_names_of_holdfast_are_reserved() -> None:
    plain = only("job", "plain", env={"HOLDFAST_TLS": "/etc/holdfast-tls"})
    assert plain.what == "env.HOLDFAST_TLS: the name HOLDFAST_TLS is reserved"
    of_a_secret = only(secrets=[{"name": "s", "env": {"HOLDFAST_MINE": "key"}}])
    assert of_a_secret.what.startswith("secrets[0].env.HOLDFAST_MINE: the name HOLDFAST_MINE is")


def test_a_command_may_have_its_own_ranks_where_nobody_gives_any() -> None:
    assert told("job", "plain", command=["./run"], env={"MASTER_ADDR": "x"}) == []
    by_secret = told(secrets=[{"name": "s", "env": {"RANK": "rank"}}])
    assert by_secret == [("settings-conflict", "secrets[0].env.RANK")]


@pytest.mark.parametrize(
    "keys",
    [
        {"env": {"NCCL_DEBUG": "INFO"}, "network": {"nccl": {"NCCL_DEBUG": "WARN"}}},
        {"env": {"A": "1"}, "secrets": [{"name": "s", "env": {"A": "a"}}]},
        {"network": {"interface": "eth0", "nccl": {"NCCL_SOCKET_IFNAME": "eth1"}}},
        {
            "nodes": 2,
            "scheduling": {"gang": "native", "topology": "rack", "separate": "rack"},
        },
        {"nodes": 2, "network": {"host": True}, "scheduling": {"one_per_machine": False}},
        {"network": {"host": True, "attach": ["sriov/a"]}},
        {"network": {"ports": {"agent": 29501}}},
        {"network": {"host": True, "ports": {"agent": 7071}}},
        {
            "nodes": {"count": 2, "spares": 1},
            "scheduling": {"gang": "native", "kueue": {"queue": "q", "partial": True}},
        },
        {
            "resources": {
                "gpus": 8,
                "claims": [{"name": "g", "device_class": "gpu.nvidia.com", "count": 8}],
            }
        },
        {
            "nodes": 4,
            "engine": "pods",
            "elasticity": {"min_nodes": 2, "max_nodes": 8},
            "scheduling": {"kueue": {"queue": "q"}},
        },
        {
            "nodes": 4,
            "elasticity": {"min_nodes": 2},
            "scheduling": {"gang": "native", "topology": "rack"},
        },
        {"datasets": [{"name": "d", "path": "/dev/shm", "pvc": "p"}]},
        {
            "datasets": [{"name": "d", "path": "/x", "pvc": "p"}],
            "checkpoints": {"shared": {"path": "/x/", "pvc": "c"}},
        },
        {"secrets": [{"name": "s", "path": "/a"}, {"name": "s", "path": "/b"}]},
    ],
)
def test_contradictions_are_refused(keys: dict[str, Any]) -> None:
    assert {slug for slug, _ in told(**keys)} == {"settings-conflict"}


def test_trials_are_alone() -> None:
    sweep = {"trials": 4}
    assert told("job", "plain", sweep=sweep) == []
    assert told("job", "plain", sweep=sweep, nodes=2) == [("settings-conflict", "sweep")]


def test_the_values_of_all_trials_fit_into_an_argument() -> None:
    def over(size: int) -> dict[str, Any]:
        return {"over": {"x": [str(n).zfill(size) for n in range(200)]}}

    assert told("job", "plain", sweep=over(600)) == []
    assert "fit into the command" in only("job", "plain", sweep=over(700)).what


# ── settings that fit the engine, but not each other ──────────────────────────────────────────


def test_a_set_that_restarts_has_no_time_limit() -> None:
    limit = {"time_limit_s": 3600}
    error = only("jobset", "plain", lifetime=limit, recovery={"max_restarts": 4})
    assert (error.slug, error.what.split()[0]) == ("settings-conflict", "lifetime.time_limit_s")
    assert "up to 5 times" in error.why
    assert "recovery.max_restarts: 0" in error.help
    assert told("jobset", "plain", lifetime=limit, recovery={"max_restarts": 0}) == []
    assert told("jobset", "managed", lifetime=limit) == []
    assert told("job", "plain", lifetime=limit) == []


@pytest.mark.parametrize("own", [{"spare_priority_class": "low"}, {"spare_priority": "low"}])
def test_spares_of_a_workload_of_their_own_are_not_admitted_in_part(own: dict[str, str]) -> None:
    queue = {"queue": "q", "partial": True}
    by_class = "spare_priority_class" in own
    scheduling = {"kueue": queue, **own} if by_class else {"kueue": {**queue, **own}}
    error = only(nodes={"count": 2, "spares": 1}, scheduling=scheduling)
    assert error.slug == "settings-conflict"
    assert error.what.startswith("scheduling.kueue.partial contradicts scheduling.")
    assert error.what.endswith(next(iter(own)))


@pytest.mark.parametrize("mode", ["managed", "plain"])
def test_a_queue_holds_back_mpijobs_of_one_version(mode: Mode) -> None:
    keys: dict[str, Any] = {"scheduling": {"kueue": {"queue": "q"}}}
    keys |= {"framework": "mpi"} if mode == "plain" else {}
    error = only("mpijob", mode, kubernetes={"mpi_version": "v1"}, **keys)
    assert error.slug == "engine-unsupported"
    assert "--mpi-version v2beta1" in error.help
    assert "jobset" in error.help
    assert "volcano" not in error.help, "Kueue does not know it"
    assert told("mpijob", mode, **keys) == []


@pytest.mark.parametrize("engine", ["mpijob", "trainjob", "volcano"])
def test_variables_without_a_name_do_not_reach_ranks_behind_sshd(engine: Engine) -> None:
    whole = {"secrets": [{"name": "keys", "all_env": True}]}
    error = only(engine, "plain", framework="mpi", **whole)
    assert (error.slug, error.what.split(":")[0]) == ("settings-conflict", "secrets[0].all_env")
    assert "secrets: [{name: keys, env: {VARIABLE: key}}]" in error.help
    archive = {"checkpoints": {"archive": {"url": "s3://b/x", "secret": "s3"}}}
    error = only(engine, "plain", framework="mpi", **archive)
    assert error.what.startswith("checkpoints.archive.secret: ")
    named = {"secrets": [{"name": "keys", "env": {"KEY": "key"}}]}
    assert told(engine, "plain", framework="mpi", **named) == []


def test_where_variables_reach_the_ranks_they_need_no_name() -> None:
    whole: dict[str, Any] = {"secrets": [{"name": "keys", "all_env": True}], "framework": "mpi"}
    assert told("mpijob", "plain", mpi={"implementation": "MPICH"}, **whole) == []
    assert told("mpijob", "plain", kubernetes={"mpi_version": "v1"}, **whole) == []
    assert told("mpijob", "plain", **{**whole, "framework": "command", "command": ["./run"]}) == []
    assert told("mpijob", "managed", secrets=whole["secrets"]) == []


def test_trainer_knows_open_mpi_only() -> None:
    error = only("trainjob", "plain", framework="mpi", mpi={"implementation": "MPICH"})
    assert (error.slug, error.what.split(":")[0]) == ("engine-unsupported", "mpi.implementation")
    assert "mpijob, volcano" in error.help


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────


def test_memory_holds_shm_and_snapshots_or_the_arithmetic_is_shown() -> None:
    small = {"gpus": 8, "memory": "8Gi"}
    error = only(resources=small)
    assert "/dev/shm 16Gi = 16Gi" in error.why
    error = only(resources={"gpus": 8, "memory": "256Gi", "state": "10Gi"})
    assert "/dev/shm 16Gi + snapshots 320Gi" in error.why
    assert "= 336Gi" in error.why
    assert told(resources={"gpus": 8, "memory": "336Gi", "state": "10Gi"}) == []


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("elasticity", {"nodes": 4, "elasticity": {"min_nodes": 5}}),
        (
            "elasticity",
            {"engine": "pods", "nodes": 4, "elasticity": {"min_nodes": 2, "max_nodes": 3}},
        ),
        ("network.numa", {"network": {"numa": True}, "resources": {"cpu": "1500m"}}),
        ("resources.hugepages", {"resources": {"hugepages": {"2Mi": "4Mi"}}}),
        (
            "resources.hugepages.2Mi",
            {"resources": {"cpu": "1", "hugepages": {"2Mi": "3Mi"}}},
        ),
        ("job", {"args": ["x" * 100_000] * 11}),
        ("nodes", {"nodes": {"count": 100_000, "spares": 1}}),
    ],
)
def test_sizes_that_cannot_be_are_refused(path: str, keys: dict[str, Any]) -> None:
    assert told(**keys) == [("size-impossible", path)]


def test_a_layout_is_compared_with_one_rank_per_gpu_before_anything_waits_in_a_queue() -> None:
    gpus: dict[str, Any] = {"nodes": 2, "resources": {"gpus": 8}}
    error = only(**gpus, parallel={"tp": 3})
    assert error.slug == "size-impossible" and "tp 3 does not divide the 16 ranks" in error.why
    assert "2 nodes with 8 workers each" in error.why
    assert told(**gpus, parallel={"tp": 8}) == []


# ── names ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("engine", "length", "nodes", "fits"),
    [
        ("job", 50, 10_000, True),
        ("jobset", 46, 10, True),
        ("jobset", 50, 100, False),
        ("volcano", 50, 100_000, True),
        ("mpijob", 50, 100_000, True),
        ("trainjob", 50, 100, False),
        ("pytorchjob", 50, 1000, True),
        ("cronjob", 50, 1000, True),
        ("cronjob", 50, 10_000, False),
    ],
)
def test_names_that_engines_make_stay_within_63_characters(
    engine: Engine, length: int, nodes: int, fits: bool
) -> None:
    framework = PLAIN[engine][0]
    times = {"schedule": {"cron": "@daily"}} if engine == "cronjob" else {}
    found = told(engine, "plain", name="a" * length, nodes=nodes, framework=framework, **times)
    assert found == ([] if fits else [("name-invalid", "name")])


@pytest.mark.parametrize(
    ("engine", "framework", "nodes", "longest"),
    [
        ("volcano", "command", 9, "run-node-8"),
        ("volcano", "pytorch", 9, "run-worker-8"),
        ("volcano", "mpi", 9, "run-launcher-0"),
        ("volcano", "mpi", 9999, "run-worker-9998"),
        ("mpijob", "mpi", 9, "run-launcher-0"),
        ("pytorchjob", "pytorch", 11, "run-worker-10"),
        ("tfjob", "tensorflow", 3, "run-evaluator-0"),
        ("jobset", "pytorch", 3, "run-node-0-2-abcde"),
        ("trainjob", "mpi", 3, "run-launcher-0-0-abcde"),
        ("cronjob", "pytorch", 3, "run-12345678-2"),
    ],
)
def test_the_longest_name_is_one_that_the_engine_makes(
    engine: Engine, framework: str, nodes: int, longest: str
) -> None:
    assert longest_name(asked(engine, "plain", framework=framework, nodes=nodes)) == longest


@pytest.mark.parametrize("own", [{"spare_priority_class": "x"}, {"kueue": {"spare_priority": "x"}}])
def test_spares_apart_have_longer_names(own: dict[str, Any]) -> None:
    if "kueue" in own:
        own = {"kueue": {"queue": "q", **own["kueue"]}}
    spares: dict[str, Any] = {
        "name": "r" * 20,
        "nodes": {"count": 2, "spares": 12},
        "scheduling": own,
    }
    assert longest_name(asked("jobset", **spares)).endswith("r-spare-0-11-abcde")
    del spares["scheduling"]
    assert longest_name(asked("jobset", **spares)).endswith("r-node-0-13-abcde")


def test_a_tpu_is_chosen_by_its_kind_and_topology() -> None:
    tpus: dict[str, Any] = {"framework": "jax", "device": "tpu", "resources": {"gpus": 4}}
    labels = ("cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology")
    assert told(**tpus) == [("settings-conflict", "google.com/tpu")] * 2
    chosen = dict.fromkeys(labels, "x")
    assert told(**tpus, scheduling={"node_selector": chosen}) == []


def test_without_agents_nobody_fetches_a_data_set() -> None:
    sets = [{"name": "d", "source": "s3://b/d"}]
    assert told(mode="plain", datasets=sets) == [("engine-unsupported", "datasets[0].source")]
    assert told(mode="managed", datasets=sets) == []


def test_names_of_services_and_volumes_are_checked_too() -> None:
    assert told(name="4b") == [("name-invalid", "name")]
    dotted = told(secrets=[{"name": "a.b", "path": "/s"}])
    assert dotted == [("name-invalid", "secrets[0].name")]
    assert told(secrets=[{"name": "a.b", "env": {"A": "a"}}]) == []
    long = told(datasets=[{"name": "d" * 60, "path": "/d", "pvc": "p"}])
    assert long == [("name-invalid", "datasets[0].name")]


# ── secrets ───────────────────────────────────────────────────────────────────────────────────

KEY = "AKIA" + "A1B2C3D4E5F6G7H8"
HUB = "hf_" + "a1B2" * 9


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("env.WANDB_API_KEY", {"env": {"WANDB_API_KEY": "0123456789abcdef"}}),
        ("env.DB_PASSWORD", {"env": {"DB_PASSWORD": "correct horse"}}),
        ("env.X", {"env": {"X": KEY}}),
        ("args[1]", {"args": ["--token", HUB]}),
        ("network.nccl.NCCL_X", {"network": {"nccl": {"NCCL_X": HUB}}}),
        (
            "datasets[0].url",
            {"datasets": [{"name": "d", "path": "/d", "url": "https://me:pw@data.example"}]},
        ),
        (
            "overlay.spec.containers[0].env[0]",
            {
                "overlay": {
                    "spec": {
                        "containers": [
                            {"name": "main", "env": [{"name": "A_SECRET", "value": "swordfish"}]}
                        ]
                    }
                }
            },
        ),
    ],
)
def test_a_secret_in_plain_sight_is_refused_and_not_repeated(
    path: str, keys: dict[str, Any]
) -> None:
    error = only(**keys)
    assert (error.slug, error.what.split()[0]) == ("plaintext-secret", path)
    for value in (KEY, HUB, "swordfish", "0123456789abcdef"):
        assert value not in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false-or-true"),
        ("MAX_TOKENS", "2048"),
        ("TOKEN_COUNT", "409600000000"),
        ("HF_TOKEN_PATH", "/run/secrets/token"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token"),
        ("DATA", "https://data.example/a@b"),
        ("KEY_SIZE", "large-enough"),
    ],
)
def test_what_only_sounds_like_a_secret_passes(name: str, value: str) -> None:
    assert told(env={name: value}) == []
    assert not looks_secret(value)
