"""What a node's counters mean: told when it begins, changes or ends, and never at each look."""

from collections.abc import Iterable

import pytest

from holdfast.detection import kernel_log, xid
from holdfast.detection.health import RULES, Conditions, How, Reading
from holdfast.events import HealthChanged, Severity

OK, WARN, ALERT, FATAL = Severity.OK, Severity.WARN, Severity.ALERT, Severity.FATAL
GPU = "0000:3b:00"


def told(changes: Iterable[HealthChanged]) -> list[tuple[str, Severity]]:
    return [(change.condition, change.severity) for change in changes]


def log(*lines: str) -> list[Reading]:
    return [Reading("kernel-log", text=line) for line in lines]


def nvrm(number: int, said: str = "pid=4711, name=python", gpu: str = GPU) -> str:
    return f"NVRM: Xid (PCI:{gpu}): {number}, {said}"


# As drivers printed them on machines whose owners have published their logs.
FELL_OFF = nvrm(79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
REBOOT = nvrm(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
RESET = nvrm(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
NONE = nvrm(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")


# ── XIDs ──


@pytest.mark.parametrize(
    ("numbers", "severity"),
    [
        ((13, 31, 32, 69, 94), WARN),
        ((46, 48, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 149, 155, 156, 158), FATAL),
        ((74, 144, 145, 146, 147, 148, 150), ALERT),
        ((43, 45, 63, 66, 67, 92, 93, 121), OK),
        ((999,), WARN),
    ],
)
def test_each_xid_asks_for_what_its_maker_says(
    numbers: tuple[int, ...], severity: Severity
) -> None:
    for number in numbers:
        found = Conditions("n").hear(log(nvrm(number)), 0.0)
        wanted = [] if severity is OK else [(f"xid-{number}", severity)]
        assert told(found) == wanted, number


def test_xid_154_overrides_what_the_table_says_of_the_others() -> None:
    assert told(Conditions("n").hear(log(nvrm(31), RESET), 0.0)) == [("xid-31", FATAL)]
    assert told(Conditions("n").hear(log(nvrm(95), NONE), 0.0)) == []
    conditions = Conditions("n")
    assert told(conditions.hear(log(nvrm(31)), 0.0)) == [("xid-31", WARN)]
    assert told(conditions.hear(log(REBOOT), 4.0)) == [("xid-31", FATAL)]
    assert told(conditions.hear(log(NONE), 8.0)) == [("xid-31", OK)]


def test_xids_of_one_gpu_are_one_burst_named_by_the_first_that_can_be_the_cause() -> None:
    conditions = Conditions("n")
    [first] = conditions.hear(log(nvrm(45), FELL_OFF, REBOOT, nvrm(13)), 0.0)
    assert first.condition == "xid-79" and first.device == GPU and "reboot" in first.advice
    assert first.detail == (f"GPU {GPU}: XID 79, GPU has fallen off the bus; then XID 45, 154, 13")
    assert conditions.hear(log(nvrm(45), nvrm(31)), 100.0) == []
    [other] = conditions.hear(log(nvrm(31, gpu="0000:5e:00")), 101.0)
    assert other.device == "0000:5e:00"


def test_an_xid_is_told_by_its_name_in_nvidias_catalogue_so_that_it_is_found() -> None:
    [fault] = Conditions("n").hear(log(nvrm(31)), 0.0)
    assert "XID 31, GPU memory page fault" in fault.detail
    [restart], [reset] = (Conditions("n").hear(log(nvrm(n)), 0.0) for n in (94, 95))
    assert "XID 94, Contained memory error" in restart.detail
    assert "XID 95, Uncontained memory error" in reset.detail


def test_the_same_error_of_the_application_twice_asks_for_diagnostics_and_no_eviction() -> None:
    conditions = Conditions("n")
    [once] = conditions.hear(log(nvrm(13)), 0.0)
    assert told(conditions.hear([], 200.0)) == [("xid-13", OK)]
    [twice] = conditions.hear(log(nvrm(13)), 400.0)
    assert once.severity is twice.severity is WARN
    assert "dcgmi diag" in twice.advice and "2 times" in twice.detail


def test_a_gpu_that_asked_for_a_reset_does_not_become_well_by_being_silent() -> None:
    conditions = Conditions("n")
    conditions.hear(log(FELL_OFF), 0.0)
    assert conditions.hear([], 1e6) == []


def test_xids_of_gpus_that_other_nodes_of_the_machine_use_are_theirs() -> None:
    conditions = Conditions("n")
    assert conditions.hear([Reading("gpu", 40.0, "0000:17:00"), *log(FELL_OFF)], 0.0) == []
    assert told(conditions.hear([Reading("gpu", 40.0, GPU), *log(FELL_OFF)], 1.0)) == [
        ("xid-79", FATAL)
    ]


def test_pci_addresses_of_nvml_and_of_the_kernel_log_are_the_same() -> None:
    assert xid.address_of("00000000:3B:00.0") == xid.address_of("0000:3b:00") == GPU


def test_every_remedy_has_a_severity_and_every_action_of_the_driver_a_remedy() -> None:
    assert set(xid.SEVERITY) == set(xid.Remedy)
    assert set(xid.ACTIONS) == set(range(8))


# ── the kernel log ──

LINES = [
    ("gpu-lost", FATAL, "0000:01:00", "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus."),
    (
        "out-of-memory",
        WARN,
        "python",
        "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:8kB",
    ),
    (
        "disk-error",
        WARN,
        "sdb",
        "blk_update_request: I/O error, dev sdb, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1",
    ),
    ("disk-error", WARN, "nvme0", "nvme nvme0: controller is down; will reset: CSTS=0xffffffff"),
    (
        "filesystem-error",
        WARN,
        "sda1",
        "EXT4-fs error (device sda1): ext4_lookup:1855: inode #2: comm ls: deleted inode 13",
    ),
    ("filesystem-error", WARN, "sda1", "EXT4-fs (sda1): Remounting filesystem read-only"),
    ("filesystem-error", WARN, "dm-0", "XFS (dm-0): Corruption of in-memory data detected."),
    ("mount-stale", WARN, "10.0.0.7", "nfs: server 10.0.0.7 not responding, still trying"),
    ("hung-task", WARN, "python", "INFO: task python:4711 blocked for more than 120 seconds."),
    (
        "processor-stuck",
        WARN,
        "CPU#3",
        "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:4711]",
    ),
    ("memory-error", ALERT, "", "mce: [Hardware Error]: Uncorrected hardware memory error in user"),
    ("memory-error", ALERT, "MC0", "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0"),
    ("memory-error-corrected", WARN, "MC1", "EDAC MC1: 2 CE memory read error on CPU_SrcID#1"),
    ("link-down", ALERT, "eth0", "ixgbe 0000:01:00.0 eth0: NIC Link is Down"),
    ("link-down", ALERT, "ens1f0", "mlx5_core 0000:3b:00.0 ens1f0: Link down"),
    ("network-card-error", ALERT, "eth0", "NETDEV WATCHDOG: eth0 (e1000e): transmit queue 0"),
]


@pytest.mark.parametrize(("condition", "severity", "device", "line"), LINES)
def test_lines_of_the_kernel_log_tell_of_conditions(
    condition: str, severity: Severity, device: str, line: str
) -> None:
    [change] = Conditions("n").hear(log(line), 0.0)
    assert (change.condition, change.severity, change.device) == (condition, severity, device)
    assert change.detail == line and change.advice


def test_every_pattern_of_the_kernel_log_is_shown_by_a_line() -> None:
    assert {name for name, *_ in LINES} == {known.condition for known in kernel_log.PATTERNS}


def test_ordinary_lines_of_the_kernel_log_tell_of_nothing() -> None:
    ordinary = log(
        "eth0: Link is Up - 10Gbps/Full",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "systemd[1]: Started Journal Service.",
        "traps: python[4711] general protection fault ip:7f sp:7f error:0",
        "",
    )
    assert Conditions("n").hear(ordinary, 0.0) == []


# ── numbers ──


def walk(
    conditions: Conditions, kind: str, *points: tuple[float, float]
) -> list[tuple[float, Severity]]:
    """When which severity was told of this kind of reading, given (time, value)."""
    return [
        (at, change.severity)
        for at, value in points
        for change in conditions.hear([Reading(kind, value, "d")], at)
    ]


def test_a_value_above_its_limit_is_told_once_it_has_lasted_and_once_it_has_gone() -> None:
    noisy = [(0, 50), (2, 50), (4, 50), (6, 50), (20, 0), (90, 50), (92, 0), (208, 0), (210, 0)]
    assert walk(Conditions("n"), "memory-pressure", *noisy) == [(4, WARN), (208, OK)]


def test_a_short_peak_is_not_told() -> None:
    peaks = [(0, 50.0), (2, 50), (4, 0), (6, 50), (8, 50), (10, 0), (12, 50)]
    assert walk(Conditions("n"), "memory-pressure", *peaks) == []


def test_what_was_so_from_the_start_has_not_become_so() -> None:
    read_only = [(0, 1.0), (5, 1.0), (10, 0.0), (15, 1.0)]
    assert walk(Conditions("n"), "mount-read-only", *read_only) == [(15, FATAL)]
    assert walk(Conditions("n"), "gpu-remap-failed", (0, 1.0)) == [(0, FATAL)], "that counts always"


def test_each_loss_of_a_link_is_an_alert_of_its_own() -> None:
    flaps = [(0, 3.0), (5, 4), (10, 4), (60, 5), (65, 5), (400, 5)]
    assert walk(Conditions("n"), "link-down", *flaps) == [(5, ALERT), (60, ALERT), (400, OK)]


def test_losses_of_a_link_within_seconds_are_one_alert() -> None:
    assert walk(Conditions("n"), "link-down", (0, 3.0), (5, 4), (10, 5)) == [(5, ALERT)]


def test_a_counter_that_starts_anew_has_not_risen() -> None:
    assert walk(Conditions("n"), "link-errors", (0, 5000.0), (5, 0), (10, 50)) == []


def test_errors_now_and_then_are_no_condition_but_many_at_once_are() -> None:
    slow = [(at, at / 10.0) for at in range(0, 600, 5)]
    assert walk(Conditions("n"), "link-errors", *slow) == []
    assert walk(Conditions("n"), "link-errors", (0, 0.0), (5, 200)) == [(5, WARN)]


def test_a_disk_that_fills_is_told_before_it_is_full() -> None:
    gib = 2.0**30
    fast = [(at, 100 * gib - at * gib / 20) for at in range(0, 300, 10)]
    assert walk(Conditions("n"), "disk-filling", *fast)[:1] == [(150, WARN)]
    slow = [(at, 100 * gib - at * gib / 400) for at in range(0, 300, 10)]
    assert walk(Conditions("n"), "disk-filling", *slow) == []
    freed = [(at, 1 * gib + at * gib) for at in range(0, 300, 10)]
    assert walk(Conditions("n"), "disk-filling", *freed) == []


def test_what_has_no_rule_is_only_shown() -> None:
    assert Conditions("n").hear([Reading("something else", 1e9)], 0.0) == []


def test_a_flood_of_warnings_is_cut_and_a_fatal_one_is_told_all_the_same() -> None:
    conditions = Conditions("n")
    flood = [f"INFO: task t{n}:1 blocked for more than 120 seconds." for n in range(500)]
    assert len(conditions.hear(log(*flood), 0.0)) == 64
    assert told(conditions.hear(log(FELL_OFF), 1.0)) == [("xid-79", FATAL)]


def test_slowness_is_told_and_nobody_is_replaced_for_it() -> None:
    slow = (
        "gpu-throttled", "gpu-hot", "gpu-pcie", "cpu-stolen", "cpu-throttled", "link-drops",
        "cpu-pressure", "rdma-retries", "rdma-congestion", "gpu-nvlink-errors", "gpu-nvlink-crc",
        "gpu-pcie-replays",
    )  # fmt: skip
    assert {RULES[kind].severity for kind in slow} == {WARN}


LOOKS = range(0, 125, 5)
COUNTED = {  # kind: how many more within a minute are ordinary, and how many are told
    "gpu-pcie-replays": (8, 9),
    "gpu-nvlink-crc": (5_900, 6_100),
    "rdma-retries": (900, 1_050),
    "rdma-congestion": (590_000, 610_000),
}


@pytest.mark.parametrize("kind", COUNTED)
def test_what_a_link_corrects_by_itself_is_told_where_it_is_much(kind: str) -> None:
    few, many = COUNTED[kind]
    ordinary = [(float(at), 1e6 + few * at / 60) for at in LOOKS]
    assert walk(Conditions("n"), kind, *ordinary) == []
    too_many = [(float(at), 1e6 + many * at / 60) for at in LOOKS]
    assert walk(Conditions("n"), kind, *too_many) == [(60, WARN)]


def test_each_error_of_nvlink_that_is_not_only_of_a_checksum_is_told() -> None:
    """DCGM takes the first of them for a failure; here it is no reason to leave a node."""
    course = [(0.0, 2.0), (5.0, 2.0), (10.0, 3.0), (100.0, 4.0), (3699.0, 4.0), (3700.0, 4.0)]
    assert walk(Conditions("n"), "gpu-nvlink-errors", *course) == [(10.0, WARN), (3700.0, OK)]


def test_processors_are_short_where_somebody_waits_for_one_nearly_all_of_a_minute() -> None:
    busy = [(float(at), 79.0) for at in LOOKS]
    assert walk(Conditions("n"), "cpu-pressure", *busy) == []
    short = [(float(at), 95.0 if 20 <= at <= 90 else 40.0) for at in range(0, 130, 5)]
    assert walk(Conditions("n"), "cpu-pressure", *short) == [(80.0, WARN), (120.0, OK)]


def test_every_rule_tells_what_to_do_and_fills_its_words() -> None:
    for rule in RULES.values():
        assert rule.advice and rule.words.format(device="d", text="t")
        assert rule.how is not How.FILLS or rule.for_s > 0
