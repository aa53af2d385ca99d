"""FLOPs are counted once by PyTorch, and `mfu` follows from them and the device's peak."""

import os

import pytest
import torch

from holdfast.page import Page
from holdfast.train import count_flops
from holdfast.train.flops import PEAKS, peak_flops, peak_of
from holdfast.train.progress import ProgressReporter


def test_a_linear_layer_s_step_is_three_matrix_products() -> None:
    model = torch.nn.Linear(64, 32)
    batch = torch.ones(8, 64, requires_grad=True)
    assert count_flops(lambda: model(batch).sum().backward()) == 3 * 2 * 8 * 64 * 32


@pytest.mark.parametrize(
    ("name", "tera"),
    [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA A100-SXM4-40GB", 312),
     ("NVIDIA L40S", 362), ("NVIDIA L4", 121), ("NVIDIA H200", 989), ("NVIDIA GH200 480GB", 989)],
)  # fmt: skip
def test_the_peak_is_that_of_the_very_device(name: str, tera: float) -> None:
    assert peak_of(name) == tera * 1e12


def test_no_device_hides_another_and_an_unknown_one_has_no_peak() -> None:
    parts = [part for part, _ in PEAKS]
    assert not [(a, b) for i, b in enumerate(parts) for a in parts[:i] if a in b and a != b]
    assert peak_of("a toaster") is None and peak_flops(torch.device("cpu")) is None


def test_a_step_with_flops_has_an_mfu_where_the_peak_is_known() -> None:
    for peak, found in ((1e9, {"flops": 2e8, "mfu": 0.4}), (None, {"flops": 2e8})):
        fd = Page.create()
        progress = ProgressReporter(Page(fd), 0, peak_flops=peak)
        progress.log(None, None, 0, {"flops": 2e8})
        progress.step_done(1, 0.5)
        [record], _ = Page(fd).records(0)
        assert dict(record.metrics) == pytest.approx(found)
        os.close(fd)
