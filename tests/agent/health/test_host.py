"""Memory, processors, folders, processes, clock, kernel log, network: recorded trees, and here."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agent.health import folders, kernel_log, network, use
from holdfast.agent.health.find import find, root_of
from holdfast.agent.health.folders import Folder, mount_of
from holdfast.agent.health.kernel_log import KernelLog
from holdfast.agent.health.pressure import HostPressure, groups_of
from holdfast.agent.health.processes import ClockSteps, JobProcesses
from holdfast.agent.health.provider import Missing
from holdfast.agent.health.traffic import TrafficMeter
from holdfast.detection.health import Conditions, Reading
from holdfast.events import Severity
from holdfast.evidence import Traffic

PSI = (
    "some avg10=24.78 avg60=13.10 avg300=5.02 total=8\nfull avg10=12.50 avg60=9 avg300=3 total=7\n"
)
CALM = "some avg10=0.00 avg60=0.00 avg300=0.00 total=8\nfull avg10=0.00 avg60=0 avg300=0 total=7\n"


def write(root: Path, files: dict[str, str]) -> Path:
    """A tree of recorded files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def by_kind(readings: list[Reading], device: str | None = None) -> dict[str, float]:
    """Values by what they are of."""
    return {r.kind: r.value for r in readings if device is None or r.device == device}


# ── pressure ──


@pytest.mark.parametrize(
    ("groups", "folder"),
    [
        ("0::/kubepods/pod1\n", "sys/fs/cgroup/kubepods/pod1"),
        ("4:memory:/j\n3:cpu,cpuacct:/j\n0::/\n", "sys/fs/cgroup/cpu,cpuacct/j"),
        ("0::/elsewhere\n", "sys/fs/cgroup"),  # as in a container, where only the topmost is there
    ],
)
def test_pressure_stolen_and_limited_time_are_shares_since_the_last_look(
    tmp_path: Path, groups: str, folder: str
) -> None:
    stat = "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 100 0 100 800 0 0 0 0 0 0\n"
    recorded = {"proc/stat": stat, "proc/pressure/memory": PSI, "proc/self/cgroup": groups}
    limits = f"{folder}/cpu.stat"
    write(tmp_path, {**recorded, limits: "nr_periods 100\nnr_throttled 10\nthrottled_time 9\n"})
    provider = HostPressure(tmp_path)
    assert by_kind(provider.read()) == {"memory-pressure": 12.5}
    write(tmp_path, {"proc/stat": stat.replace("800 0 0 0 0", "850 0 0 0 50")})
    write(tmp_path, {limits: "nr_periods 200\nnr_throttled 60\nthrottled_time 9\n"})
    assert by_kind(provider.read()) == {
        "memory-pressure": 12.5, "cpu-stolen": 0.5, "cpu-throttled": 0.5
    }  # fmt: skip
    assert by_kind(provider.read()) == {"memory-pressure": 12.5}, "no time has passed"


def test_pressure_of_the_control_group_is_told_beside_that_of_the_machine(tmp_path: Path) -> None:
    write(tmp_path, {"proc/pressure/memory": CALM, "proc/self/cgroup": "0::/p\n"})
    write(tmp_path, {"sys/fs/cgroup/p/memory.pressure": PSI, "proc/stat": "cpu  1 2\n"})
    found = HostPressure(tmp_path).read()
    assert by_kind(found, "the control group") == {"memory-pressure": 12.5}
    assert by_kind(found, "") == {"memory-pressure": 0.0}


def test_processors_are_short_where_somebody_waits_for_one(tmp_path: Path) -> None:
    """All never do, and so says the kernel since 5.13."""
    some = "some avg10=83.20 avg60=70.00 avg300=50.00 total=900\n"
    none = "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    write(tmp_path, {"proc/pressure/cpu": some + none, "proc/stat": "cpu  1 2\n"})
    [found] = HostPressure(tmp_path).read()
    assert (found.kind, found.value) == ("cpu-pressure", 83.2)
    assert found.text == "some 83.2 %, full 0 % of the last 10 s"


# ── folders ──


def disk(free: float, flag: int = 0) -> Callable[[Path], Any]:
    """A file system of a thousand blocks of 1 MiB."""
    found = {"f_blocks": 1000, "f_frsize": 1 << 20, "f_bfree": free, "f_bavail": free}
    return lambda _path: SimpleNamespace(f_flag=flag, **found)


MOUNTS = """22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:50 / /mnt/my\\040share rw shared:7 - nfs4 server:/x rw,hard
broken
"""


def test_a_folder_tells_how_full_it_is_and_whether_it_can_be_written_to(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/mountinfo": MOUNTS})
    nearly = Folder(Path("/data"), root, disk(10)).read()
    assert by_kind(nearly) == {
        "mount-read-only": 0.0, "disk-full": 0.99, "disk-filling": 10.0 * (1 << 20),
        "folder-denied": 0.0,
    }  # fmt: skip
    fixed = Folder(Path("/mnt/my share/a"), root, disk(10, os.ST_RDONLY)).read()
    assert by_kind(fixed)["share-read-only"] == 1.0
    common = Folder(Path("/data"), root, disk(10, os.ST_RDONLY), shared=True).read()
    assert by_kind(common)["share-read-only"] == 1.0, "whatever its file system"
    assert mount_of(Path("/mnt/my share/a"), root) == ("/mnt/my share", "nfs4")
    assert mount_of(Path("/mnt/other"), root) == ("/", "ext4")


def test_folders_of_one_file_system_are_looked_at_once(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/mountinfo": MOUNTS})
    paths = [Path("/a"), Path("/b/c"), Path("/mnt/my share")]
    assert [one.name for one in folders.find(paths, root)] == [
        "folder /a", "folder /mnt/my share"
    ]  # fmt: skip
    own, common = folders.find([Path("/a")], root, [Path("/s/x"), Path("/mnt/my share")])
    assert own.beside == [Path("/s/x")] and not common.beside


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of our own, where that is allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_real_disk_that_fills_up_and_becomes_read_only_is_seen(mounted: Path) -> None:
    folder = Folder(mounted)
    assert by_kind(folder.read())["disk-full"] < 0.1
    (mounted / "core").write_bytes(bytes(1 << 20))
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    found = by_kind(folder.read())
    assert found["disk-full"] > 0.98 and found["mount-read-only"] == 1.0


def test_a_folder_that_the_job_will_make_is_looked_at_where_it_will_be(tmp_path: Path) -> None:
    there, to_be = Folder(tmp_path).read(), Folder(tmp_path / "job" / "gone").read()
    assert {one.kind for one in to_be} == {one.kind for one in there}
    assert {one.device for one in to_be} == {str(tmp_path / "job" / "gone")}


@pytest.fixture
def of_root() -> Iterator[Path]:
    """A folder of root's, and this process is somebody else as far as files go."""
    if os.geteuid():
        pytest.skip("only root can become somebody else")
    folder = Path(tempfile.mkdtemp())  # what pytest makes others cannot enter
    folder.chmod(0o755)
    os.seteuid(65534)
    yield folder
    os.seteuid(0)
    folder.rmdir()


def test_a_folder_whose_owner_and_mode_refuse_is_a_warning_that_says_who_may_not(
    of_root: Path,
) -> None:
    found = Folder(of_root / "replay", shared=True).read()
    (told,) = [one for one in Conditions("n").hear(found, 0.0) if one.condition != "disk-full"]
    assert (told.condition, told.severity) == ("folder-denied", Severity.WARN)
    assert told.detail.startswith(f"{of_root}/replay cannot be written to: user 65534, group 0 ")
    assert "its owner is user 0, group 0, its mode 0755" in told.detail and "fsGroup" in told.advice


# ── processes and clock ──


def stat_of(state: str, name: str = "python (x) ") -> str:
    return f"7 ({name}) {state} 1 7 7 0 -1 4194304 0"


def test_a_process_that_waits_in_the_kernel_is_told_with_how_long_and_where(tmp_path: Path) -> None:
    write(tmp_path, {"proc/1/task/1/children": "2 3 ", "proc/2/task/2/children": "4"})
    write(tmp_path, {"proc/2/stat": stat_of("S"), "proc/3/stat": stat_of("Z")})
    write(tmp_path, {"proc/4/stat": stat_of("D"), "proc/4/wchan": "rpc_wait_bit_killable"})
    now = [100.0]
    provider = JobProcesses(tmp_path, 1, lambda: now[0])
    assert by_kind(provider.read()) == {"zombies": 1.0, "process-stuck": 0.0}
    now[0] = 140.0
    [_, stuck] = provider.read()
    assert stuck.value == 40.0 and stuck.text == "pid 4, for 40 s (rpc_wait_bit_killable)"
    write(tmp_path, {"proc/4/stat": stat_of("S")})
    provider.read()
    write(tmp_path, {"proc/4/stat": stat_of("D")})
    assert by_kind(provider.read())["process-stuck"] == 0.0, "it had moved in between"


def test_a_process_that_wakes_up_between_looks_is_not_stuck(tmp_path: Path) -> None:
    """As one that writes more than its disk takes."""
    switched = "Name:\tx\nvoluntary_ctxt_switches:\t{}\nnonvoluntary_ctxt_switches:\t3\n"
    write(tmp_path, {"proc/1/task/1/children": "4", "proc/4/stat": stat_of("D")})
    now = [100.0]
    provider = JobProcesses(tmp_path, pid=1, clock=lambda: now[0])
    for at, switches, waited_s in ((100, 7, 0), (102, 8, 0), (104, 9, 0), (106, 9, 2), (108, 9, 4)):
        now[0] = at
        write(tmp_path, {"proc/4/status": switched.format(switches)})
        assert by_kind(provider.read())["process-stuck"] == waited_s


def test_real_zombies_of_ours_are_counted() -> None:
    child = subprocess.Popen(["true"])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        [zombies, _] = JobProcesses(Path("/")).read()
        assert zombies.value >= 1
    finally:
        child.wait()


def test_a_clock_that_is_set_is_told_and_one_that_runs_is_not() -> None:
    wall, steady = [1000.0], [50.0]
    clock = ClockSteps(lambda: wall[0], lambda: steady[0])
    wall[0], steady[0] = 1005.0, 55.0
    assert clock.read() == [Reading("clock-jump", 0.0, text="")]
    wall[0], steady[0] = 1000.0, 60.0
    assert clock.read() == [Reading("clock-jump", 10.0, text="-10.000 s")]
    assert ClockSteps().read()[0].value < 1.0


# ── the kernel log ──


def test_the_log_is_read_from_now_on_and_each_record_once(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,1,10,-;before\n")
    reader = KernelLog(log)
    assert reader.read() == []
    with log.open("a") as file:
        file.write("3,2,20,-;NVRM: Xid (PCI:0000:3b:00): 79\n SUBSYSTEM=pci\n6,3,30")
        file.flush()
        assert [r.text for r in reader.read()] == ["NVRM: Xid (PCI:0000:3b:00): 79"]
        file.write(",-;eth0: Link is Down\n")
    assert [r.text for r in reader.read()] == ["eth0: Link is Down"]
    assert reader.read() == []
    reader.close()
    again = KernelLog(log, from_start=True)
    assert len(again.read()) == 3
    again.close()


def test_what_programs_write_into_the_log_is_not_the_kernels(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("12,1,10,-;NVRM: Xid (PCI:0000:3b:00): 79\nnonsense\n;\n")
    reader = KernelLog(log, from_start=True)
    assert reader.read() == []
    reader.close()


def test_the_log_of_this_machine_is_read_without_waiting() -> None:
    found = kernel_log.find(Path("/"))
    if isinstance(found, Missing):
        pytest.skip(found.why)
    found.read()
    found.close()


# ── the network ──

ROUTES = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
    "veth7\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\n"
    "cni0\t0000F40A\t00000000\t0001\t0\t0\t0\t0000FFFF\n"
)


def interface(name: str, **counters: int) -> dict[str, str]:
    """Files of one interface."""
    folder = {True: f"sys/class/net/{name}/statistics", False: f"sys/class/net/{name}"}
    return {f"{folder[f.startswith(('rx_', 'tx_'))]}/{f}": f"{n}\n" for f, n in counters.items()}


def test_links_are_counted_and_bridges_and_other_peoples_left_out(tmp_path: Path) -> None:
    up = {"carrier": 1, "rx_errors": 3, "tx_errors": 4, "rx_dropped": 5, "tx_dropped": 0}
    for name in ("lo", "cni0", "veth9"):
        write(tmp_path, interface(name, **up, carrier_down_count=9))
    write(tmp_path, interface("veth7", **up, carrier_down_count=2, speed=10000))
    write(tmp_path, interface("eth1", **{**up, "carrier": 0}, carrier_changes=3, device=0))
    write(tmp_path, {"sys/class/net/off/device": "", "proc/net/route": ROUTES})
    [links, ports] = network.find(tmp_path)
    assert isinstance(ports, Missing)
    assert not isinstance(links, Missing)
    found = links.read()
    assert {r.device for r in found} == {"veth7", "eth1"}
    wanted = {"link-down": 2.0, "link-errors": 7.0, "link-drops": 5.0}
    assert by_kind(found, "veth7") == wanted
    assert by_kind(found, "eth1") == {**wanted, "link-down": 2.0}, "from an old kernel's counter"


def test_bytes_of_links_and_ports_are_counted_in_bytes(tmp_path: Path) -> None:
    up = {"carrier": 1, "carrier_changes": 0, "device": 0, "rx_bytes": 12_000, "tx_bytes": 34_000}
    write(tmp_path, interface("eth0", **up))
    port = "sys/class/infiniband/mlx5_1/ports/1"
    write(tmp_path, {f"{port}/state": "4: ACTIVE\n", f"{port}/rate": "400 Gb/sec (4X NDR)\n"})
    counters = {"port_rcv_data": 1000, "port_xmit_data": 2000}
    write(tmp_path, {f"{port}/counters/{name}": f"{n}\n" for name, n in counters.items()})
    hardware = {
        "packet_seq_err": 1, "out_of_sequence": 20, "local_ack_timeout_err": 300,
        "np_cnp_sent": 4000, "rp_cnp_handled": 50000, "rx_write_requests": 7,
    }  # fmt: skip
    write(tmp_path, {f"{port}/hw_counters/{name}": f"{n}\n" for name, n in hardware.items()})
    links, ports = network.find(tmp_path)
    assert not isinstance(links, Missing) and not isinstance(ports, Missing)
    found = by_kind(links.read())
    assert (found["link-received"], found["link-sent"]) == (12_000, 34_000)
    found = by_kind(ports.read())
    assert (found["rdma-received"], found["rdma-sent"]) == (4000, 8000), "words of four bytes"
    assert (found["rdma-retries"], found["rdma-congestion"]) == (321, 54000)


def test_what_links_carry_is_counted_while_workers_are_looked_at(tmp_path: Path) -> None:
    up = {"carrier": 1, "carrier_changes": 0, "device": 0}
    port = "sys/class/infiniband/mlx5_1/ports/1"

    def carried(sent: int, received: int, words: int) -> None:
        write(tmp_path, interface("eth0", **up, rx_bytes=received, tx_bytes=sent))
        write(tmp_path, interface("eth1", **up, rx_bytes=0, tx_bytes=sent))
        write(tmp_path, {f"{port}/state": "4: ACTIVE\n", f"{port}/rate": "400 Gb/sec\n"})
        for way in ("rcv", "xmit"):
            write(tmp_path, {f"{port}/counters/port_{way}_data": f"{words}\n"})

    now = [10.0]
    carried(1000, 5000, 100)
    meter = TrafficMeter(tmp_path, lambda: now[0])
    carried(1500, 7000, 400)
    now[0] = 12.0
    assert meter.read() == (
        Traffic(kind="rdma", sent_bytes=1200, received_bytes=1200, seconds=2.0),
        Traffic(kind="link", sent_bytes=1000, received_bytes=2000, seconds=2.0),
    )
    carried(0, 0, 0)
    assert all(one.sent_bytes == one.received_bytes == 0 for one in meter.read()), "it began anew"


def test_a_machine_without_links_tells_of_none(tmp_path: Path) -> None:
    assert TrafficMeter(tmp_path).read() == ()


def test_the_links_of_this_machine_can_be_counted() -> None:
    assert all(one.seconds >= 0 for one in TrafficMeter(Path("/")).read())


IO = "259:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n8:0 rbytes=1 wbytes=2\n"


def test_what_the_control_group_uses_is_counted(tmp_path: Path) -> None:
    assert isinstance(use.find(tmp_path), Missing)
    group = "sys/fs/cgroup/kubepods/pod1"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/kubepods/pod1\n",
            f"{group}/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
            f"{group}/memory.current": "1073741824\n",
            f"{group}/memory.max": "max\n",
            f"{group}/io.stat": IO,
        },
    )
    provider = use.find(tmp_path)
    assert not isinstance(provider, Missing)
    wanted = {"cpu-seconds": 2.5, "memory-used": 1 << 30, "disk-read": 4097, "disk-written": 8194}
    assert by_kind(provider.read()) == wanted, "and there is no limit"
    write(tmp_path, {f"{group}/memory.max": "2147483648\n"})
    assert by_kind(provider.read())["memory-limit"] == 2 << 30


def test_control_groups_of_version_1_are_read_from_their_two_trees(tmp_path: Path) -> None:
    tree = "sys/fs/cgroup"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/a\n1:name=systemd:/a\n",
            f"{tree}/cpu,cpuacct/a/cpuacct.usage": "1500000000\n",
            f"{tree}/memory/a/memory.usage_in_bytes": "4096\n",
            f"{tree}/memory/a/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    provider = use.find(tmp_path)
    assert not isinstance(provider, Missing)
    assert by_kind(provider.read()) == {"cpu-seconds": 1.5, "memory-used": 4096.0}


def test_ports_of_rdma_adapters_tell_state_losses_and_errors(tmp_path: Path) -> None:
    port = "sys/class/infiniband/mlx5_0/ports/1"
    write(tmp_path, {f"{port}/state": "4: ACTIVE\n", f"{port}/rate": "400 Gb/sec (4X NDR)\n"})
    counters = {"link_downed": 1, "symbol_error": 2, "port_rcv_errors": 3}
    write(tmp_path, {f"{port}/counters/{name}": f"{n}\n" for name, n in counters.items()})
    (tmp_path / "sys/class/net").mkdir()
    [_, ports] = network.find(tmp_path)
    assert not isinstance(ports, Missing)
    found = ports.read()
    assert {r.device for r in found} == {"mlx5_0/1"}
    assert by_kind(found) == {"rdma-inactive": 0.0, "rdma-down": 1.0, "rdma-errors": 5.0}
    assert found[0].text == "ACTIVE, 400 Gb/sec (4X NDR)"
    write(tmp_path, {f"{port}/state": "1: DOWN\n"})
    assert by_kind(ports.read())["rdma-inactive"] == 1.0


# ── all of them ──


def test_an_empty_machine_lacks_everything_and_says_why(tmp_path: Path) -> None:
    found = find(tmp_path, [])
    assert {one.name for one in found.missing} == {
        "GPUs", "kernel log", "memory and processors", "network interfaces", "RDMA ports",
        "use of processors, memory and disks",
    }  # fmt: skip
    assert all(str(tmp_path) in one.why for one in found.missing)
    for provider in found.present:
        provider.read()


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    found = find(Path("/"), [tmp_path, "s3://bucket/checkpoints"])
    readings = [reading for provider in found.present for reading in provider.read()]
    assert {"disk-full", "zombies", "clock-jump"} <= {reading.kind for reading in readings}
    assert not any("s3" in provider.name for provider in found.present)


def test_the_root_can_be_another_one_for_each_node() -> None:
    assert root_of({}, "node-1") == Path("/")
    assert root_of({"HOLDFAST_HEALTH_ROOT": "/host"}, "node-1") == Path("/host")
    assert root_of({"HOLDFAST_HEALTH_ROOT": "/r/{node}"}, "node-1") == Path("/r/node-1")
    assert root_of({"HOLDFAST_HEALTH_ROOT": ""}, "node-1") == Path("/")


def test_control_groups_that_are_not_there_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "9:name=systemd:/\n8:pids:/\nnonsense\n0::/a/b\n"})
    assert groups_of(tmp_path) == []
