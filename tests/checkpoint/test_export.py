"""What was trained in any layout is read by others: torch.load, DCP, safetensors; bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load

from holdfast.checkpoint import catalog
from holdfast.checkpoint.catalog import Opened
from holdfast.checkpoint.dcp import HoldfastReader
from holdfast.checkpoint.export import export
from holdfast.checkpoint.open_store import open_store
from holdfast.errors import Error
from tests.train.layouts import WORLDS, Fleet, Net, truth

NAMES = [name for name, _ in Net().named_parameters()]
MOMENTS = ("exp_avg", "exp_avg_sq")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints in some layouts."""
    folder = tmp_path_factory.mktemp("exported")
    fleet = Fleet(folder)
    for layout in ("ddp2", "fsdp_tp", "pp2", "plain2"):
        fleet.world(WORLDS[layout], ("save", layout, 7, layout, ["shared"]))
    fleet.close()
    return folder


def opened(places: Path, layout: str) -> Opened:
    store = open_store(str(places / f"{layout}-shared"))
    return catalog.open_checkpoint(store, catalog.committed(store)[0].key)


def require_true(state: dict[str, Any]) -> None:
    """The whole model and its moments."""
    assert state["model"].keys() == Net().state_dict().keys()
    assert state["model"]["seen"] == 7
    for name in NAMES:
        assert torch.equal(state["model"][name], truth(name, "value")), name
        moments = state["optimizer"]["state"][name]
        assert moments["step"] == 7
        assert all(torch.equal(moments[m], truth(name, m)) for m in MOMENTS), name


@pytest.mark.parametrize("layout", ["ddp2", "fsdp_tp", "pp2"])
def test_torch_loads_what_was_exported_without_trusting_it(
    places: Path, tmp_path: Path, layout: str
) -> None:
    export(opened(places, layout), str(tmp_path), "torch")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    require_true(state)
    assert state["scheduler"]["last_epoch"] == 1
    listed = [name for g in state["optimizer"]["param_groups"] for name in g["params"]]
    assert sorted(listed) == sorted(NAMES)
    Net().load_state_dict(state["model"])


def fresh() -> tuple[Net, torch.optim.Optimizer]:
    model = Net()
    biases = [p for n, p in model.named_parameters() if "bias" in n]
    weights = [p for n, p in model.named_parameters() if "bias" not in n]
    groups: list[dict[str, Any]] = [{"params": weights}, {"params": biases, "lr": 0.125}]
    return model, torch.optim.AdamW(groups, lr=1e-3)


@pytest.mark.parametrize("layout", ["ddp2", "fsdp_tp", "pp2"])
@pytest.mark.parametrize("exported", [True, False])
def test_dcp_loads_it_exported_or_as_it_lies(
    places: Path, tmp_path: Path, layout: str, exported: bool
) -> None:
    if exported:
        export(opened(places, layout), str(tmp_path), "dcp")
    reader = None if exported else HoldfastReader(str(places / f"{layout}-shared"))
    model, optimizer = fresh()
    parts = get_state_dict(model, optimizer)
    state: dict[str, Any] = dict(zip(("model", "optimizer"), parts, strict=True))
    folder = str(tmp_path) if exported else None
    load(state, checkpoint_id=folder, storage_reader=reader, no_dist=True)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    moments = {name: optimizer.state[p] for name, p in model.named_parameters()}
    require_true({"model": model.state_dict(), "optimizer": {"state": moments}})
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.5]


@pytest.mark.parametrize("layout", ["fsdp_tp", "pp2"])
def test_safetensors_come_in_one_file_or_in_several_with_an_index(
    places: Path, tmp_path: Path, layout: str
) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    export(opened(places, layout), str(one), "safetensors")
    export(opened(places, layout), str(many), "safetensors", True, 260)
    whole = load_file(one / "model.safetensors")
    with safe_open(one / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    index = json.loads((many / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and files == sorted(p.name for p in many.glob("*.safetensors"))
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in whole.values())
    split = {name: load_file(many / file)[name] for name, file in index["weight_map"].items()}
    assert split.keys() == whole.keys() == Net().state_dict().keys()
    for name in NAMES:
        assert torch.equal(whole[name], truth(name, "value"))
        assert torch.equal(split[name], whole[name])


def test_what_is_damaged_is_not_exported(places: Path, tmp_path: Path) -> None:
    """This is the last test that reads this one."""
    data = next((places / "ddp2-shared").glob("step-*/rank-00001.data"))
    content = bytearray(data.read_bytes())
    content[8] ^= 1
    data.write_bytes(content)
    for form in ("torch", "dcp"):
        with pytest.raises(Error) as caught:
            export(opened(places, "ddp2"), str(tmp_path / form), form)
        assert caught.value.slug == "checkpoint-damaged"
        assert not list(tmp_path.glob(f"{form}/*"))


def test_parameters_of_unclear_layouts_are_not_put_together(places: Path, tmp_path: Path) -> None:
    with pytest.raises(Error) as caught:
        export(opened(places, "plain2"), str(tmp_path), "safetensors")
    assert caught.value.slug == "layout-unknown"


def test_a_reader_of_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(Error) as caught:
        HoldfastReader(str(tmp_path), step=3)
    assert caught.value.slug == "checkpoint-not-found"
