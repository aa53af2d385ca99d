"""The Llama from text to samples: tokens, training in a layout through a kill, export, writing."""

import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import prepare
import pretrain
import sample as writing
from llama import Llama, Shape
from tests.end_to_end.local.jobs import RunningJob
from tests.end_to_end.local.test_in_process import UNHURRIED_S
from tests.integrations.jobs import own_run
from tests.more import long
from tests.tidy.source import ROOT
from tests.warm import holdfast

FOLDER = ROOT / "examples" / "llm"
TINY = Shape(context=16, layers=2, heads=4, kv_heads=2, width=16, hidden=32)
SIZES = ("context", "layers", "heads", "kv_heads", "width", "hidden")


def run(monkeypatch: pytest.MonkeyPatch, module: Any, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *words])
    module.main()


def trained(home: Path, tokens: Path, steps: int, layout: dict[str, Any], name: str) -> RunningJob:
    """The job of the example with another size, on one node."""
    spec = yaml.safe_load((FOLDER / "job.yaml").read_text())
    spec |= {"name": name, "nodes": 1, "parallel": layout, "script": str(FOLDER / "pretrain.py")}
    spec |= {"snapshots": {"every_steps": 1}, "workdir": str(home.parent)}
    spec["recovery"] = {"restart_grace_s": UNHURRIED_S}  # for who survives
    spec["checkpoints"]["shared"]["path"] = str(home.parent / name)
    spec["args"] = [str(tokens), "--steps", str(steps), "--batch-size", "2", *sizes()]
    return RunningJob(home, **spec).start()


def sizes() -> list[str]:
    return [f"--{size.replace('_', '-')}={getattr(TINY, size)}" for size in SIZES]


def test_a_llama_is_trained_on_a_text_and_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a plain process; how it is trained by others is below, and in tests/train."""
    own_run(monkeypatch)
    text, tokens, saved = tmp_path / "text", tmp_path / "tokens.bin", tmp_path / "checkpoint.pt"
    text.write_bytes(b"to be or not to be, " * 200)
    run(monkeypatch, prepare, "--out", str(tokens), str(text))
    models: list[Any] = []

    class Kept(Llama):
        def __init__(self, shape: Shape) -> None:
            super().__init__(shape)
            models.append(self)

    monkeypatch.setattr(pretrain, "Llama", Kept)
    small = ("--steps", "40", "--batch-size", "4", "--print-every", "20", "--warmup", "5")
    run(monkeypatch, pretrain, str(tokens), *small, *sizes())
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", capsys.readouterr().out)]
    assert len(losses) == 2 and losses[1] < losses[0] < 6
    torch.save({"model": models[0].state_dict()}, saved)
    words = ("--heads", "4", "--samples", "2", "--length", "8", "--prompt", "to be")
    run(monkeypatch, writing, str(saved), *words)
    assert capsys.readouterr().out.count("to be") >= 2


LAYOUTS = [{"tp": 2}, {"dp_shard": 2}, {"pp": 2}, {"cp": 2}]


@long
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_llama_in_any_layout_goes_on_after_a_kill_and_writes(
    home: Path,
    layout: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    layout = {"dp_shard": 1, **layout}
    text, tokens = home.parent / "text", home.parent / "tokens.bin"
    text.write_bytes(b"to be or not to be, " * 200)
    run(monkeypatch, prepare, "--out", str(tokens), str(text))
    job = trained(home, tokens, 100, layout, "llm")
    job.wait_step(2)
    os.kill(job.worker(1), signal.SIGKILL)
    job.wait_end()
    (incident,) = job.incidents()
    assert (incident.cause, incident.rank) == ("worker-killed", 1)
    assert (incident.steps_lost or 0) <= 1
    losses = job.losses()
    assert [*losses] == [*range(1, 101)] and losses[100] < losses[1] / 2
    made = holdfast("checkpoint", "export", "llm", "--form", "torch", "--to", str(home.parent))
    assert made.returncode == 0, made.stderr
    words = ("--heads", "4", "--samples", "2", "--length", "8", "--prompt", "to be")
    capsys.readouterr()
    run(monkeypatch, writing, str(home.parent / "checkpoint.pt"), *words)
    assert capsys.readouterr().out.count("to be") >= 2


@long
@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_rank_killed_in_a_layout_changes_no_bit(home: Path, layout: dict[str, Any]) -> None:
    layout, tokens = {"dp_shard": 1, **layout}, home.parent / "tokens.bin"
    (np.arange(5000, dtype=np.uint16) % 100).tofile(tokens)
    undisturbed = trained(home, tokens, 200, layout, "undisturbed")
    undisturbed.wait_end()
    for rank in range(2):
        job = trained(home, tokens, 200, layout, f"killed-{rank}")
        job.wait_step(20)
        os.kill(job.worker(rank), signal.SIGKILL)
        job.wait_end()
        (incident,) = job.incidents()
        kept = any(taken.action == "KeepProcesses" for taken in incident.actions)
        assert kept == ("pp" not in layout), "a pipeline finds out its shapes in its first step"
        assert job.losses() == undisturbed.losses()


@pytest.mark.parametrize("experts", [0, 4])
def test_the_size_follows_from_the_parameters(experts: int) -> None:
    shape = replace(TINY, experts=experts)
    model = Llama(shape)
    known = Shape(context=shape.context, heads=shape.heads)
    assert writing.shape_of(model.state_dict(), known) == shape


def test_what_is_written_begins_with_the_prompt_also_beyond_the_context() -> None:
    torch.manual_seed(0)
    text = writing.continued(Llama(TINY), b"to be", 30, 1.0)
    assert text.startswith(b"to be") and len(text) == 35
