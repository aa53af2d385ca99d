"""Checks of what computes: each GPU, or the processor where there is none.

    python -m holdfast.checks.devices '{"bytes": 268435456}'

Products of matrices of -1, 0 and 1 are whole numbers that every format holds exactly, so their
answer is known; a processor is asked on each of its cores, because it is single cores that go bad.
Whatever is rounded has to come out with the same bits again, and, as a digest, on every machine
with the same device and the same PyTorch.
"""

import os
import platform
from collections.abc import Callable, Iterator

import xxhash

from holdfast.checks.host import order
from holdfast.checks.outcome import CheckFinding, tell
from holdfast.devices import seen_by

try:
    import torch
except ImportError:
    HAS_TORCH = False
else:
    HAS_TORCH = True

SIDE = 256  # of matrices: sums stay whole in eight bits of mantissa
PATTERNS = (0, -1, 0x55, -0x56)  # as bytes with a sign: 00 FF 55 AA
REPEATS = 3
FREE_SHARE = 0.5  # of a GPU's free memory that is looked at, at most
REPLACE = "take the machine out of use if this recurs"


def main() -> None:
    """Check every device."""
    told = order()
    checks: dict[str, Callable[[], CheckFinding]] = {
        "matmul": matmul,
        "device memory": lambda: device_memory(told.bytes),
        "model step": model_step,
    }
    for name, check in checks.items():
        tell(name, check if HAS_TORCH else without_torch)


def without_torch() -> CheckFinding:
    """For every check that needs it."""
    return CheckFinding("skipped", "PyTorch is not installed")


def devices() -> "list[torch.device]":
    """Each GPU, or the processor."""
    traits, count = seen_by(torch)
    type_ = traits.torch_type or "cpu"
    return [torch.device(type_, number) for number in range(count)] or [torch.device("cpu")]


def kind(device: "torch.device") -> str:
    """What devices have in common that compute with the same bits."""
    if device.type != "cpu":
        name = torch.get_device_module(device).get_device_name(device)
        return f"{name}, torch {torch.__version__}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {capability}, torch {torch.__version__}"


# ── products ──


def matmul() -> CheckFinding:
    """Known answers on every device and core; the same bits each time."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    wrong = [where for device in devices() for where in _wrong_products(device)]
    if wrong:
        return CheckFinding("failed", f"wrong products on {', '.join(wrong[:8])}", help=REPLACE)
    return _repeated(_rounded_product, "products")


def _wrong_products(device: "torch.device") -> Iterator[str]:
    if device.type == "cuda":
        yield from [str(device)] * (not _is_right(device))
        return
    allowed, threads = os.sched_getaffinity(0), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for core in sorted(allowed):
            os.sched_setaffinity(0, {core})
            yield from [f"core {core}"] * (not _is_right(device))
    finally:
        os.sched_setaffinity(0, allowed)
        torch.set_num_threads(threads)


def _is_right(device: "torch.device") -> bool:
    made = torch.Generator().manual_seed(5)
    one, two = (torch.randint(-1, 2, (SIDE, SIDE), generator=made) for _ in range(2))
    expected = one @ two
    for format_ in (torch.float32, torch.float64, torch.bfloat16):
        found = one.to(device, format_) @ two.to(device, format_)
        if not torch.equal(found.cpu().long(), expected):
            return False
    return True


def _rounded_product(device: "torch.device") -> bytes:
    made = torch.Generator().manual_seed(6)
    one, two = (torch.randn((SIDE, SIDE), generator=made).to(device) for _ in range(2))
    return bytes_of(one @ two @ one)


def bytes_of(tensor: "torch.Tensor") -> bytes:
    """As they lie in memory."""
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def _repeated(compute: "Callable[[torch.device], bytes]", what: str) -> CheckFinding:
    """The same bits each time, and on each device of a kind. `what` is a part of the digest: other
    versions of ours may compute something else."""
    torch.set_num_threads(1)
    digests: dict[str, set[str]] = {}
    for device in devices():
        found = {xxhash.xxh3_64_hexdigest(compute(device)) for _ in range(REPEATS)}
        if len(found) > 1:
            words = f"{what} on {device} differ between {REPEATS} repetitions"
            return CheckFinding("failed", words, help=REPLACE)
        digests.setdefault(f"{kind(device)}, {what}", set()).update(found)
    for name, found in digests.items():
        if len(found) > 1:
            return CheckFinding("failed", f"{what} differ between devices of {name}", help=REPLACE)
    digest = ";".join(f"{name}={found.pop()}" for name, found in sorted(digests.items()))
    count = len(devices())
    on_gpus = devices()[0].type != "cpu"
    where = f"{count} GPU{'s' if count > 1 else ''}" if on_gpus else _cores()
    return CheckFinding(
        "ok", f"{what} as expected on {where}, the same bits {REPEATS} times", digest
    )


def _cores() -> str:
    count = len(os.sched_getaffinity(0))
    return f"{count} core{'s' if count > 1 else ''}"


# ── memory ──


def device_memory(size: int) -> CheckFinding:
    """Patterns are read from a GPU's memory as they were written."""
    if devices()[0].type == "cpu":
        return CheckFinding("skipped", "no GPU is available to PyTorch")
    looked = []
    for device in devices():
        free, _ = torch.get_device_module(device).mem_get_info(device)
        length = min(size, int(free * FREE_SHARE))
        if not _holds(device, length):
            return CheckFinding(
                "failed", f"read-back mismatch in the memory of {device}", help=REPLACE
            )
        looked.append(f"{length >> 20} MiB of {device}")
    return CheckFinding("ok", f"{', '.join(looked)}: {len(PATTERNS) + 1} patterns read as written")


def _holds(device: "torch.device", length: int) -> bool:
    area = torch.empty(length // 8 * 8, dtype=torch.int8, device=device)
    for pattern in PATTERNS:
        area.fill_(pattern)
        if not bool((area == pattern).all()):
            return False
    words = area.view(torch.int64)
    torch.arange(len(words), out=words)  # another one at each place
    for at in range(0, len(words), 1 << 24):
        part = words[at : at + (1 << 24)]
        if not torch.equal(part, torch.arange(at, at + len(part), device=device)):
            return False
    return True


# ── a model ──


def model_step() -> CheckFinding:
    """Three steps of a small reference model end with the same bits each time."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    return _repeated(trained, "three steps of a model with Adam")


def trained(device: "torch.device") -> bytes:
    """All parameters after three steps of Adam, from the same start on the same batch.

    The optimizer is written out: those of torch import its compiler, which takes longer than
    everything else that is checked here.
    """
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(layer, torch.nn.Linear(64, 8))
    batch, target = torch.randn(4, 32, 64), torch.randn(4, 32, 8)
    model, batch, target = model.to(device), batch.to(device), target.to(device)
    parameters = list(model.parameters())
    means = [(torch.zeros_like(one), torch.zeros_like(one)) for one in parameters]
    for step in range(1, 4):
        loss = torch.nn.functional.mse_loss(model(batch), target)
        for one, gradient, (first, second) in zip(
            parameters, torch.autograd.grad(loss, parameters), means, strict=True
        ):
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient.square(), 0.001)
            scale = (second / (1 - 0.999**step)).sqrt_().add_(1e-8)
            one.data.addcdiv_(first, scale, value=-1e-2 / (1 - 0.9**step))
    return b"".join(map(bytes_of, parameters))


if __name__ == "__main__":
    main()
