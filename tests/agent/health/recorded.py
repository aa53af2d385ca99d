"""An object with NVML's interface that gives values written down before.

No GPU was at hand when this was written: names, signatures and constants are those of nvidia-ml-py
13.615 (checked against it where it is installed), the values are those of an H100 as NVIDIA's
documentation prints them.
"""

from collections import deque
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As the library raises it, with the code in `value`."""

    def __init__(self, value: int, text: str = "") -> None:
        super().__init__(text)
        self.value = value


NOT_SUPPORTED = NVMLError(3, "Not Supported")
TIMEOUT = NVMLError(10, "Timeout")
LOST = NVMLError(15, "GPU is lost")

HEALTHY: dict[str, Any] = {
    "pci": "00000000:3B:00.0",
    "nvmlDeviceGetTemperature": 41,
    "nvmlDeviceGetTemperatureThreshold": 87,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1,  # idle
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=60),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=70 << 30),
    "nvmlDeviceGetPowerUsage": 690_000,
    "nvmlDeviceGetTotalEnergyConsumption": 5_000_000,
    "nvmlDeviceGetTotalEccErrors": 0,
    "nvmlDeviceGetRemappedRows": (0, 0, 0, 0),
    "nvmlDeviceGetCurrPcieLinkWidth": 16,
    "nvmlDeviceGetMaxPcieLinkWidth": 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": 5,
    "recovery": 0,
    "links": 18,
}


class RecordedNvml:
    """GPUs by what is known of each; change `gpus` to have something happen."""

    NVMLError = NVMLError
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    nvmlEventTypeXidCriticalError = 8  # noqa: N815

    def __init__(self, *gpus: dict[str, Any]) -> None:
        self.gpus = [dict(HEALTHY, **gpu) for gpu in gpus]
        self.events: deque[Any] = deque()
        self.registered = 0

    def __getattr__(self, name: str) -> Any:
        """Every other function reads one value of one GPU; an error stands for itself."""
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)

        def get(handle: int, *_: Any) -> Any:
            value = self.gpus[handle].get("all", self.gpus[handle].get(name, NOT_SUPPORTED))
            if isinstance(value, NVMLError):
                raise value
            return value

        return get

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        """Nothing to do."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """How many there are."""
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        """Its place."""
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        """Its address."""
        return SimpleNamespace(busId=self.gpus[handle]["pci"])

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: N802
        """Whether a link is active; those that a GPU does not have are not supported."""
        if self.gpus[handle]["links"] is None:
            raise NOT_SUPPORTED
        return int(link < self.gpus[handle]["links"])

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[Any]:  # noqa: N802
        """The recovery action; 3 says that the driver is too old to know."""
        assert fields == [self.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        action = self.gpus[handle]["recovery"]
        value = SimpleNamespace(uiVal=action)
        return [SimpleNamespace(nvmlReturn=3 if action is None else 0, value=value)]

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        """Where events are waited for."""
        return "events"

    def nvmlDeviceRegisterEvents(self, _handle: int, kinds: int, _set: str) -> None:  # noqa: N802
        """Only XIDs."""
        assert kinds == self.nvmlEventTypeXidCriticalError
        self.registered += 1

    def nvmlEventSetWait_v2(self, _set: str, _timeout_ms: int) -> Any:  # noqa: N802
        """The next event, if there is one."""
        if not self.events:
            raise TIMEOUT
        return self.events.popleft()

    def xid(self, handle: int, number: int) -> None:
        """The driver tells of one."""
        self.events.append(SimpleNamespace(device=handle, eventData=number))
