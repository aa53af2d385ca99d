"""A pod template says what the job asks for, and nothing it does not."""

import os
import socket
import sys
import time
from typing import Any

import pytest

from holdfast.drivers.kubernetes.manifests import pod, program, storage
from holdfast.drivers.kubernetes.manifests.part import Part
from holdfast.spec.cluster import Mode
from holdfast.spec.quantities import amount, in_bytes
from tests.drivers.kubernetes.asking import asked


def spec(mode: Mode = "managed", part: Part | None = None, **keys: Any) -> dict[str, Any]:
    """The spec of a pod of such a job."""
    found: dict[str, Any] = pod.template(asked(mode=mode, **keys), part or Part())["spec"]
    return found


def main(mode: Mode = "managed", part: Part | None = None, **keys: Any) -> dict[str, Any]:
    """Its main container."""
    found: dict[str, Any] = spec(mode, part, **keys)["containers"][0]
    return found


def env(container: dict[str, Any]) -> dict[str, str]:
    """Its plain variables."""
    return {e["name"]: e["value"] for e in container["env"] if "value" in e}


# ── the program ──


def test_a_managed_pod_finds_its_controller_and_knows_itself() -> None:
    container = main(env={"A": "1"}, part=Part(command=program.agent(asked())))
    assert container["command"] == ["holdfast", "agent"]
    assert env(container)["HOLDFAST_CONTROLLER"] == "run-controller:7071"
    fields = {
        e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"]
        for e in container["env"]
        if "valueFrom" in e
    }
    assert fields["HOLDFAST_NODE"] == "metadata.uid"
    assert "A" not in env(container), "the agent gives it to the workers, from the job file"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert (mounts["job"], mounts["token"]) == ("/etc/holdfast/job", "/etc/holdfast/token")
    assert mounts["holdfast"] == env(container)["HOLDFAST_HOME"] == "/var/run/holdfast"


def test_a_plain_pod_knows_nothing_of_holdfast_but_its_data() -> None:
    container = main("plain", env={"A": "1"})
    assert env(container) == {"A": "1"}
    assert [m["name"] for m in container["volumeMounts"]] == ["shm"]
    assert "readinessProbe" not in container
    assert "securityContext" not in spec("plain")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"args": ["--lr", "1"]}, ("python", "train.py", "--lr", "1")),
        ({"module": "a.b"}, ("python", "-m", "a.b")),
        ({"workdir": "sub"}, ("python", "../train.py")),
        ({"script": "sub/train.py", "workdir": "sub"}, ("python", "train.py")),
        ({"script": "/abs/train.py", "workdir": "sub"}, ("python", "/abs/train.py")),
        ({"command": ["a", "b"], "args": ["c"]}, ("a", "b", "c")),
        ({"image": {"name": "i", "python": "python3.12"}}, ("python3.12", "train.py")),
    ],
)
def test_the_program_is_started_as_people_do(keys: dict[str, Any], words: tuple[str, ...]) -> None:
    assert program.script(asked(**keys)) == words


def test_torchrun_gets_the_shape_of_the_job() -> None:
    request = asked(nodes=4, resources={"gpus": 8}, args=["--x"], recovery={"max_restarts": 3})
    assert program.torchrun(request, *program.rendezvous(request, "run-0.run")) == (
        "torchrun", "--nnodes=4", "--rdzv-backend=c10d", "--rdzv-endpoint=run-0.run:29400",
        "--rdzv-conf=read_timeout=300", "--rdzv-id=run", "--max-restarts=3",
        "--nproc-per-node=8", "train.py", "--x",
    )  # fmt: skip
    elastic = asked(nodes=4, elasticity={"min_nodes": 2})
    assert program.rendezvous(elastic, "h")[0] == "--nnodes=2:4"


def test_nobody_meets_before_the_name_of_the_first_node_is_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DNS knows a pod seconds after it runs, and for a while still the one that it replaced."""
    request = asked("job", "plain", nodes=2)
    words = program.meeting(request, "run-0.run", ("torchrun", "train.py"))
    assert words[:2] == ("python3", "-c")
    answers: list[str | None] = []
    began: list[list[str]] = []

    def told(name: str, _port: None) -> list[tuple[Any, ...]]:
        answer = "10.0.0.7" if name == socket.gethostname() else answers.pop(0)
        if answer is None:
            raise socket.gaierror("Name or service not known")
        return [(0, 0, 0, "", (answer, 0))]

    def played(me: str, *names: str | None) -> int:
        """As the pod called `me`; how many of the answers were not needed."""
        answers[:] = names
        monkeypatch.setattr(socket, "gethostname", lambda: me)
        exec(words[2], {})
        return len(answers)

    monkeypatch.setattr(socket, "getaddrinfo", told)
    monkeypatch.setattr(sys, "argv", ["-c", *words[3:]])
    monkeypatch.setattr(time, "sleep", lambda _s: None)
    monkeypatch.setattr(os, "execvp", lambda _file, command: began.append(command))
    assert played("run-0", None, None, "10.0.0.3", "10.0.0.7", "unasked") == 1
    assert played("run-1", None, "10.0.0.3", "unasked") == 1
    assert began == [["torchrun", "train.py"]] * 2
    mine = asked("job", "plain", command=["./train.sh"])
    assert program.meeting(mine, "run-0.run", ("./train.sh",)) == ("./train.sh",)


@pytest.mark.parametrize(
    ("base", "workdir", "expected"),
    [(None, ".", None), ("/w", ".", "/w"), ("/w", "a/b", "/w/a/b"), ("/w", "/x", "/x")],
)
def test_the_working_folder(base: str | None, workdir: str, expected: str | None) -> None:
    image = {"name": "i", **({"workdir": base} if base else {})}
    assert main(image=image, workdir=workdir).get("workingDir") == expected


def test_secrets_become_variables_and_files() -> None:
    secrets = [
        {"name": "s3", "env": {"KEY": "key"}, "path": "/s3"},
        {"name": "all", "all_env": True},
    ]
    container = main("plain", secrets=secrets)
    ref = {"secretKeyRef": {"name": "s3", "key": "key"}}
    assert {"name": "KEY", "valueFrom": ref} in container["env"]
    assert container["envFrom"] == [{"secretRef": {"name": "all"}}]
    volume = {"secretName": "s3", "defaultMode": 0o440}
    assert {"name": "secret-s3", "secret": volume} in spec("plain", secrets=secrets)["volumes"]


def test_a_variable_is_given_once_and_the_users_word_is_last() -> None:
    keys: dict[str, Any] = {"network": {"profile": "roce"}, "env": {"NCCL_IB_TC": "1"}}
    names = [e["name"] for e in main("plain", **keys)["env"]]
    assert len(names) == len(set(names))
    assert env(main("plain", **keys))["NCCL_IB_TC"] == "1"


# ── resources ──


def test_resources_are_asked_for_as_a_whole() -> None:
    asks = {
        "gpus": 8, "cpu": 64, "memory": "512Gi", "ephemeral_storage": "1Ti",
        "hugepages": {"2Mi": "5Gi"}, "extended": {"example.com/x": 2},
    }  # fmt: skip
    network = {"efa_count": 4, "rdma_resource": "rdma/a"}
    keys: dict[str, Any] = {"resources": asks, "network": network}
    found = main(**keys)["resources"]
    assert found["limits"] == {
        "memory": "512Gi", "ephemeral-storage": "1Ti", "hugepages-2Mi": "5Gi",
        "nvidia.com/gpu": "8", "rdma/a": "1", "vpc.amazonaws.com/efa": "4", "example.com/x": "2",
    }  # fmt: skip
    assert found["requests"]["cpu"] == "64"
    assert "cpu" not in found["limits"]
    assert main(resources={"cpu": 4}, network={"numa": True})["resources"]["limits"]["cpu"] == "4"


@pytest.mark.parametrize("name", ["nvidia.com/mig-3g.40gb", "nvidia.com/gpu.shared", "amd.com/gpu"])
def test_parts_of_a_gpu_have_their_own_name(name: str) -> None:
    keys: dict[str, Any] = {"resources": {"gpus": 2, "gpu_resource": name}}
    assert main(**keys)["resources"]["limits"] == {name: "2"}
    key = "nvidia.com/gpu" if "nvidia" in name else name
    assert key in [t["key"] for t in spec(**keys)["tolerations"]]


def test_claims_name_their_template() -> None:
    claims = [{"name": "gpus", "device_class": "gpu.nvidia.com", "count": 8}]
    found = spec(resources={"claims": claims})
    template = "run-gpus"
    assert found["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": template}]
    assert found["containers"][0]["resources"]["claims"] == [{"name": "gpus"}]
    assert asked(resources={"claims": claims}).workers == 8


def test_shared_memory_grows_with_the_workers() -> None:
    (volume,) = [v for v in spec(resources={"gpus": 8})["volumes"] if v["name"] == "shm"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    request = asked(resources={"gpus": 8, "state": "10Gi"})
    assert storage.snapshot_bytes(request) == 8 * 4 * 10 * 1024**3
    assert storage.snapshot_bytes(asked(mode="plain", resources={"state": "10Gi"})) == 0


def test_a_process_beside_the_nodes_gets_no_devices_and_no_data() -> None:
    keys: dict[str, Any] = {
        "resources": {"gpus": 8},
        "network": {"efa_count": 4, "profile": "efa"},
        "datasets": [{"name": "d", "path": "/d", "pvc": "d"}],
    }
    part = Part(role="launcher", small=True, cpu="1", memory="2Gi")
    container = main("plain", part, **keys)
    assert container["resources"] == {
        "requests": {"cpu": "1", "memory": "2Gi"},
        "limits": {"memory": "2Gi"},
    }
    assert "volumeMounts" not in container
    assert "env" not in container


# ── network ──


@pytest.mark.parametrize(
    ("profile", "name", "value"),
    [
        ("tcp", "NCCL_IB_DISABLE", "1"),
        ("infiniband", "NCCL_IB_HCA", "mlx5"),
        ("roce", "NCCL_IB_GID_INDEX", "3"),
        ("efa", "FI_PROVIDER", "efa"),
        ("gke-tcpx", "NCCL_SOCKET_IFNAME", "eth0"),
    ],
)
def test_profiles_set_what_the_fabric_needs(profile: str, name: str, value: str) -> None:
    keys: dict[str, Any] = {"resources": {"gpus": 8}}
    network = {"profile": profile, "tcpx_image": "tcpx:1"}
    assert env(main(network=network, **keys))[name] == value
    overridden = {**network, "nccl": {name: "mine"}}
    assert env(main(network=overridden, **keys))[name] == "mine"


def test_host_network_brings_its_dns_policy_and_one_node_per_machine() -> None:
    found = spec(network={"host": True})
    assert (found["hostNetwork"], found["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    (term,) = found["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"


def test_meshes_stay_out_and_further_networks_come_in() -> None:
    template = pod.template(asked(network={"attach": ["sriov/a", "sriov/b"]}), Part())
    notes = template["metadata"]["annotations"]
    assert notes["sidecar.istio.io/inject"] == "false"
    assert notes["k8s.v1.cni.cncf.io/networks"] == "sriov/a,sriov/b"
    meshed = pod.template(asked(network={"mesh": True}), Part())
    assert "annotations" not in meshed["metadata"]


def test_tcpx_runs_beside_the_workers() -> None:
    network = {"profile": "gke-tcpx", "tcpx_image": "tcpx:1"}
    (sidecar,) = spec(network=network)["initContainers"]
    assert (sidecar["image"], sidecar["restartPolicy"]) == ("tcpx:1", "Always")


def test_pinned_memory_needs_a_capability() -> None:
    context = main(network={"profile": "infiniband"})["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert main()["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(
    ("device", "resource", "taint"),
    [
        ("auto", "nvidia.com/gpu", "nvidia.com/gpu"),
        ("cuda", "nvidia.com/gpu", "nvidia.com/gpu"),
        ("rocm", "amd.com/gpu", "amd.com/gpu"),
        ("xpu", "gpu.intel.com/i915", "gpu.intel.com/i915"),
    ],
)
def test_a_kind_of_device_has_its_resource_and_its_taint(
    device: str, resource: str, taint: str
) -> None:
    found = spec("managed", device=device, resources={"gpus": 2})
    assert found["containers"][0]["resources"]["limits"][resource] == "2"
    assert taint in [toleration["key"] for toleration in found["tolerations"]]


# ── storage ──


@pytest.mark.parametrize(
    ("dataset", "source"),
    [
        ({"pvc": "c4"}, {"persistentVolumeClaim": {"claimName": "c4", "readOnly": True}}),
        ({"host_path": "/c"}, {"hostPath": {"path": "/c", "type": "Directory"}}),
        (
            {"download": [{"url": "https://example.org/a"}], "size": "1Gi"},
            {"emptyDir": {"sizeLimit": "1Gi"}},
        ),
    ],
)
def test_data_comes_from_where_it_is(dataset: dict[str, Any], source: dict[str, Any]) -> None:
    found = spec("plain", datasets=[{"name": "c4", "path": "/data", **dataset}])
    assert {"name": "data-c4", **source} in found["volumes"]
    (container,) = found["containers"]
    mount = {"name": "data-c4", "mountPath": "/data", "readOnly": True}
    assert mount in container["volumeMounts"]
    assert env(container)["HOLDFAST_DATA_C4"] == "/data"


def test_an_object_store_is_only_named() -> None:
    found = spec("plain", datasets=[{"name": "c4", "path": "/data", "url": "s3://b/c4"}])
    assert env(found["containers"][0])["HOLDFAST_DATA_C4"] == "s3://b/c4"
    assert [v["name"] for v in found["volumes"]] == ["shm"]


def test_the_cache_of_data_sets_is_a_folder_of_the_machine_or_a_volume_of_the_pod() -> None:
    def volumes(*caches: dict[str, Any]) -> dict[str, Any]:
        sets = [
            {"name": f"d{number}", "source": "s3://b/c4", "cache": cache}
            for number, cache in enumerate(caches)
        ]
        found = spec("managed", datasets=sets)
        paths = {m["name"]: m["mountPath"] for m in found["containers"][0]["volumeMounts"]}
        return {
            paths[volume.pop("name")]: volume
            for volume in found["volumes"]
            if volume["name"].startswith("data-")
        }

    on_machine = {"hostPath": {"path": "/nvme", "type": "DirectoryOrCreate"}}
    own = "/var/run/holdfast/datasets"
    assert volumes({"folder": "/nvme"}, {"folder": "/nvme"}) == {"/nvme": on_machine}
    assert volumes({"size": "2Ti"}) == {own: {"emptyDir": {"sizeLimit": "2Ti"}}}
    both = volumes({"folder": "/nvme"}, {"volume_class": "fast", "size": "1Ti"})
    claim = both[own]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["storageClassName"] == "fast"
    assert claim["resources"] == {"requests": {"storage": "1Ti"}}
    assert both["/nvme"] == on_machine


def test_every_tier_is_mounted_and_named() -> None:
    tiers = {
        "local": {"pvc_class": "nvme", "size": "1Ti"},
        "shared": {"pvc": "ckpt"},
        "archive": {"url": "s3://b/x/", "secret": "s3", "endpoint": "http://minio:9000"},
    }
    found = spec("plain", checkpoints=tiers)
    (container,) = found["containers"]
    assert env(container) == {
        "HOLDFAST_CHECKPOINT_LOCAL": "/checkpoints/local/run",
        "HOLDFAST_CHECKPOINT_SHARED": "/checkpoints/shared/run",
        "HOLDFAST_CHECKPOINT_ARCHIVE": "s3://b/x/run",
        "AWS_ENDPOINT_URL": "http://minio:9000",
    }
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    local = next(v for v in found["volumes"] if v["name"] == "checkpoints-local")
    claim = local["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["resources"]["requests"] == {"storage": "1Ti"}


def test_trials_and_nightly_runs_have_checkpoints_of_their_own() -> None:
    tiers = {"shared": {"pvc": "ckpt"}}
    place = "HOLDFAST_CHECKPOINT_SHARED"
    trials = main("plain", checkpoints=tiers, sweep={"trials": 4})
    assert env(trials)[place] == "/checkpoints/shared/run/$(HOLDFAST_TRIAL)"
    names = [entry["name"] for entry in trials["env"]]
    assert names.index("HOLDFAST_TRIAL") < names.index(place), "or it would not be filled in"
    night = asked("cronjob", "plain", checkpoints=tiers, schedule={"cron": "@daily"})
    (nightly,) = pod.template(night, Part())["spec"]["containers"]
    assert env(nightly)[place] == "/checkpoints/shared/run/$(JOB_NAME)"


# ── placement ──


def test_where_a_pod_may_run() -> None:
    scheduling = {
        "node_selector": {"pool": "h200"},
        "separate": "rack",
        "spread": [{"key": "zone", "required": True}],
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"x": 1}, "podAntiAffinity": {"y": 1}},
        "priority_class": "train",
        "spare_priority_class": "spare",
        "preemption": "Never",
        "scheduler": "other",
    }
    found = spec(scheduling=scheduling)
    assert found["nodeSelector"] == {"pool": "h200"}
    assert found["affinity"]["nodeAffinity"] == {"x": 1}
    assert found["affinity"]["podAntiAffinity"]["y"] == 1
    assert found["topologySpreadConstraints"][0]["whenUnsatisfiable"] == "DoNotSchedule"
    assert found["topologySpreadConstraints"][0]["nodeTaintsPolicy"] == "Honor"
    assert found["tolerations"][-1] == {"key": "spot", "operator": "Exists"}
    keys = ("priorityClassName", "preemptionPolicy", "schedulerName")
    assert [found[key] for key in keys] == ["train", "Never", "other"]
    assert spec(part=Part(role="spare"), scheduling=scheduling)["priorityClassName"] == "spare"


def apart(part: Part, **scheduling: Any) -> list[dict[str, Any]]:
    """Selectors of the rules that keep such a pod away from others, or spread it among them."""
    found = spec("plain", part, scheduling=scheduling)
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = found.get("affinity", {}).get("podAntiAffinity", {}).get(required, [])
    return [t["labelSelector"] for t in (*terms, *found.get("topologySpreadConstraints", ()))]


@pytest.mark.parametrize("role", ["node", "spare", "chief"])
@pytest.mark.parametrize(
    "rule", [{"separate": "rack"}, {"one_per_machine": True}, {"spread": [{"key": "zone"}]}]
)
def test_whatever_trains_is_kept_apart_from_all_that_trains(
    role: str, rule: dict[str, Any]
) -> None:
    (found,) = apart(Part(role=role), **rule)
    (roles,) = found["matchExpressions"]
    assert (roles["key"], set(roles["values"])) == ("holdfast.dev/role", {"node", "spare", "chief"})


@pytest.mark.parametrize("role", ["launcher", "ps", "evaluator"])
def test_what_runs_beside_the_nodes_may_share_their_place(role: str) -> None:
    rules: dict[str, Any] = {"separate": "rack", "one_per_machine": True}
    assert apart(Part(role=role, small=True), spread=[{"key": "zone"}], **rules) == []
    mine = {"podAntiAffinity": {"y": 1}}
    found = spec("plain", Part(role=role, small=True), scheduling={**rules, "affinity": mine})
    assert found["affinity"] == mine


def test_dead_machines_are_left_soon() -> None:
    seconds = {t["key"]: t["tolerationSeconds"] for t in spec()["tolerations"]}
    assert set(seconds.values()) == {20}
    assert len(seconds) == 2


def test_there_is_time_for_a_checkpoint_before_the_end() -> None:
    assert spec(recovery={"stop_grace_s": 100.5})["terminationGracePeriodSeconds"] == 116
    plain = spec("plain", recovery={"stop_grace_s": 100.5})
    assert plain["terminationGracePeriodSeconds"] == 101
    for mode in ("managed", "plain"):
        assert spec(mode, recovery={"stop_grace_s": 2})["terminationGracePeriodSeconds"] == 30


# ── security ──


def test_managed_pods_meet_the_restricted_standard() -> None:
    context = spec()["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert main()["securityContext"]["allowPrivilegeEscalation"] is False
    assert spec()["automountServiceAccountToken"] is False
    group = {"fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"}
    told = spec(image={"name": "i", "root": True})["securityContext"]
    assert told == group, "the image may have another user, who has to read the token"
    assert "securityContext" not in spec("plain", image={"name": "i", "root": True})
    files = [{"name": "s", "path": "/s"}]
    assert spec("plain", image="i", secrets=files)["securityContext"] == group
    assert "securityContext" in spec("plain", image={"name": "i", "root": False})


# ── quantities ──


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        ("500m", 0.5),
        ("2", 2),
        ("1.5", 1.5),
        ("1k", 1000),
        ("64Gi", 64 << 30),
        ("1.5Ti", 1.5 * 2**40),
    ],
)
def test_quantities_are_exact(quantity: str, number: float) -> None:
    assert amount(quantity) == number


def test_bytes_are_shown_in_the_largest_unit() -> None:
    shown = [in_bytes(n) for n in (0, 1, 1023, 1024, 3 << 30, (1 << 40) + 1024)]
    assert shown == ["0", "1", "1023", "1Ki", "3Gi", "1073741825Ki"]
    assert all(amount(in_bytes(n)) == n for n in (5, 1 << 20, 12345678))
