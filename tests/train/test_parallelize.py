"""What a layout does to a model, where one process can tell; and what it refuses, with numbers."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel

from holdfast.dimensions import VARIABLE, Layout, told
from holdfast.errors import Error
from holdfast.train import join
from holdfast.train.layouts import stepping
from holdfast.train.layouts.asked import asked_layout, require_plain_options
from holdfast.train.layouts.blocks import find_blocks
from holdfast.train.layouts.build import Built
from holdfast.train.layouts.clipping import clip, gradients_of, total_norm
from holdfast.train.layouts.context import SharedContext
from holdfast.train.layouts.experts import experts_of
from holdfast.train.layouts.loss_scale import BEGIN, LossScale
from holdfast.train.layouts.recomputation import recompute
from holdfast.train.layouts.run_layout import RunLayout
from holdfast.train.layouts.stepping import Share, Stepper
from holdfast.train.layouts.tensor import plan_of, require_divisible, styles, tie_again
from holdfast.train.placement import find_placement
from llama import Llama, mean_loss
from tests.integrations.jobs import own_run
from tests.train.curves import EXPERTS, SHAPE


def llama() -> Any:
    torch.manual_seed(3)
    return Llama(SHAPE)


def batch() -> Any:
    return torch.arange(8 * SHAPE.context).view(8, -1) * 7 % SHAPE.vocabulary


def gradients(model: nn.Module, step: Any) -> dict[str, torch.Tensor]:
    """Of one step that changes nothing."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer, "zero_grad", lambda: None)
        step(optimizer)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def plainly(model: Any, optimizer: Any) -> None:
    torch.autograd.backward(mean_loss(model(batch()), batch()))
    optimizer.step()


def in_parts(model: Any, parts: int) -> Any:
    stepper = Stepper(Built(model), Layout(dp_shard=1).resolve(1), None, None)

    def step(optimizer: Any) -> None:
        share = Share(8, 8, 1, parts)
        stepper.step([optimizer], (batch(),), batch(), mean_loss, share, None)

    return step


@pytest.mark.parametrize("parts", [1, 3, 8, 20])
def test_micro_batches_of_any_size_have_the_gradient_of_the_batch(parts: int) -> None:
    whole = gradients(model := llama(), lambda optimizer: plainly(model, optimizer))
    divided = gradients(model := llama(), in_parts(model, parts))
    for name, gradient in whole.items():
        torch.testing.assert_close(divided[name], gradient, rtol=1e-4, atol=1e-6)


def test_gradients_along_tp_are_compared_in_the_first_step_of_each_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that is kept has done it before; its new peer has not, and all ranks have to."""
    compared: list[Any] = []
    monkeypatch.setattr(stepping, "require_same_gradients", lambda _, tp: compared.append(tp))
    model, alone = llama(), asked_layout(1)
    optimizer, share = torch.optim.SGD(model.parameters()), Share(8, 8, 1, 1)
    layout = RunLayout(alone, find_placement(), torch.device("cpu"), alone=True)
    mesh: Any = {"tp": "along tp"}
    stepper = layout._stepper = Stepper(Built(model), Layout(tp=2).resolve(2), mesh, None)

    def two_steps() -> None:
        for _ in range(2):
            stepper.step([optimizer], (batch(),), batch(), mean_loss, share, None)

    two_steps()
    assert compared == ["along tp"]
    layout.begin_again(alone, 1)
    two_steps()
    assert compared == ["along tp"] * 2


@pytest.mark.parametrize("wish", ["full", "selective"])
def test_activations_that_are_computed_again_change_no_bit_and_no_name(wish: Any) -> None:
    whole = gradients(model := llama(), in_parts(model, 1))
    model = llama()
    recompute([*model.layers], wish)
    again = gradients(model, in_parts(model, 1))
    assert again.keys() == whole.keys()
    assert all(torch.equal(again[name], whole[name]) for name in whole)


def test_the_norm_is_that_of_pytorch() -> None:
    model = llama()
    gradients(model, in_parts(model, 1))
    found = gradients_of(model.parameters())
    norm = total_norm(found, None)
    expected = [one.clone() for one in found]
    reference = nn.utils.get_total_norm(expected)
    torch.testing.assert_close(norm, reference)
    clip(found, norm, 0.01)
    torch.testing.assert_close(total_norm(found, None), torch.tensor(0.01), rtol=1e-3, atol=0)


def test_blocks_are_the_largest_repetition_or_what_the_script_names() -> None:
    model = nn.ModuleDict(
        {"small": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "net": llama()}
    )
    assert find_blocks(model, None).path == "net.layers"
    assert find_blocks(model, "small").path == "small"
    assert not find_blocks(nn.Linear(2, 2), None).modules
    with pytest.raises(Error) as refused:
        find_blocks(model, "layer")
    assert "small, net.layers" in refused.value.why


# ── plans ──


def test_a_plan_is_given_or_declared_by_the_model_or_its_configuration() -> None:
    model = llama()
    assert plan_of(model, {"head": "colwise"}) == {"head": "colwise"}
    assert plan_of(model, None) == Llama.tp_plan
    declared: Any = nn.Linear(2, 2)
    declared.config = type("Config", (), {"base_model_tp_plan": {"q": "colwise"}})()
    assert plan_of(declared, None) == {"q": "colwise"}
    with pytest.raises(Error) as refused:
        plan_of(nn.Linear(2, 2), None)
    assert refused.value.slug == "layout-invalid"


def test_norms_stay_whole_without_sequence_parallelism() -> None:
    found = styles(llama(), Llama.tp_plan, sequence=False)
    assert not [name for name in found if "norm" in name]
    assert isinstance(found["layers.3.network.up"], ColwiseParallel)
    assert isinstance(styles(llama(), Llama.tp_plan, sequence=True)["norm"], SequenceParallel)


def test_norms_of_heads_are_divided_as_the_heads_whatever_the_sequence() -> None:
    model = llama()
    model.layers[0].attention.query_norm = nn.RMSNorm(8)
    plan = {"layers.*.attention.query_norm": "replicated_with_grad_allreduce"}
    (style,) = styles(model, plan, sequence=False).values()
    assert isinstance(style, SequenceParallel)
    with pytest.raises(Error, match="no module that computes on a part of the sequence"):
        styles(model, plan, sequence=True)


@pytest.mark.parametrize(
    ("plan", "sequence", "said"),
    [
        ({"layers.*.network.upp": "colwise"}, False, "layers.*.network.upp"),
        ({"head": "diagonal"}, False, "'diagonal', which is not known"),
        ({"head": "colwise"}, True, "no module that computes on a part of the sequence"),
    ],
)
def test_a_plan_that_does_not_fit_the_model_is_refused(
    plan: Any, sequence: bool, said: str
) -> None:
    with pytest.raises(Error) as refused:
        styles(llama(), plan, sequence=sequence)
    assert said in refused.value.what


def test_one_parameter_that_a_plan_divides_in_two_ways_is_refused() -> None:
    model = llama()
    model.head.weight.placements = "another"
    with pytest.raises(Error, match=r"embedding.weight and head.weight are one parameter") as said:
        tie_again(model, "embedding.weight", "head.weight")
    assert '"rowwise_rep"' in said.value.help
    del model.head.weight.placements
    tie_again(model, "embedding.weight", "head.weight")
    assert model.head.weight is model.embedding.weight


def test_heads_that_cannot_be_divided_are_named_with_what_would_fit() -> None:
    model = llama()
    found = styles(model, Llama.tp_plan, sequence=False)
    require_divisible(model, found, 2)
    with pytest.raises(Error) as refused:
        require_divisible(model, found, 4)
    assert refused.value.what == "2 n_kv_heads cannot be divided by tp 4"
    assert refused.value.help == "parallel.tp can be 1 or 2"
    with pytest.raises(Error) as refused:
        require_divisible(nn.Sequential(nn.Linear(4, 6)), {"0": ColwiseParallel()}, 4)
    assert "its 6 rows or columns" in refused.value.what


# ── experts ──


def mixture() -> Any:
    torch.manual_seed(3)
    return Llama(EXPERTS)


def test_experts_are_found_by_a_plan_or_by_what_the_model_declares() -> None:
    names = [f"layers.{number}.network.experts" for number in range(4)]
    assert experts_of(mixture(), None, 2) == names
    assert experts_of(mixture(), {"layers.1.network.experts": "experts"}, 4) == names[1:2]
    twice = {"layers.*.network.experts": "experts", "layers.1.network.experts": "experts"}
    assert experts_of(mixture(), twice, 2) == names, "each is divided once"
    declared: Any = nn.ModuleDict({"net": mixture()})
    plan = {"net.layers.*.network.experts": "ep_dispatch_experts", "net.head": "grouped_gemm"}
    declared.config = type("Config", (), {"base_model_ep_plan": plan})()
    assert experts_of(declared, None, 2) == [f"net.{name}" for name in names]
    both = {"head": "colwise", "layers.*.network.experts": "experts"}
    assert [*styles(mixture(), both, sequence=False)] == ["head"]


def with_scales() -> Any:
    model = mixture()
    model.layers[1].network.experts.register_buffer("scale", torch.ones(4, 1))
    return model


@pytest.mark.parametrize(
    ("model", "plan", "ep", "said"),
    [
        (mixture, None, 3, "4 experts of layers.0.network.experts cannot be divided by ep 3"),
        (llama, None, 2, "parallel.ep is 2, but the model is not known to have experts"),
        (mixture, {"head": "colwise"}, 2, "the model is not known to have experts"),
        (mixture, {"layers.*.experts": "experts"}, 2, "the plan names 'layers.*.experts', which"),
        (with_scales, None, 2, "buffer scale of layers.1.network.experts cannot be divided"),
        (mixture, {"layers.0": "experts"}, 2, "the experts of layers.0 cannot be told apart"),
    ],
)
def test_experts_that_cannot_be_divided_are_refused(
    model: Any, plan: Any, ep: int, said: str
) -> None:
    with pytest.raises(Error) as refused:
        experts_of(model(), plan, ep)
    assert refused.value.slug == "layout-invalid"
    assert said in refused.value.what


def test_a_sequence_is_not_divided_around_networks_that_stay_whole() -> None:
    model = mixture()
    styles(model, plan_of(model, None), sequence=False)
    with pytest.raises(Error, match="sequence_parallel"):
        styles(model, plan_of(model, None), sequence=True)


# ── what the job asks for ──


def test_a_layout_that_does_not_fit_the_ranks_is_refused_when_they_join() -> None:
    with pytest.raises(Error) as refused:
        asked_layout(2, {VARIABLE: told(Layout(tp=4))})
    assert refused.value.slug == "layout-invalid"
    assert "4 or" not in refused.value.why and "with 4 ranks" in refused.value.why


def test_options_of_ddp_are_refused_where_there_is_none() -> None:
    require_plain_options({"bucket_cap_mb": 1}, Layout().resolve(1))
    with pytest.raises(Error, match="bucket_cap_mb"):
        require_plain_options({"bucket_cap_mb": 1}, Layout().resolve(2))


def test_a_loss_scale_leaves_out_steps_that_overflow_and_is_state() -> None:
    scale = LossScale()
    assert not scale.accepts(float("inf")) and scale.factor == BEGIN / 2
    assert scale.accepts(1.0)
    other = LossScale()
    other.load_state_dict(scale.state_dict())
    assert other.state_dict() == scale.state_dict() == {"factor": BEGIN / 2, "good": 1}


def test_a_loop_of_its_own_does_no_step_with_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    own_run(monkeypatch)
    monkeypatch.setenv(VARIABLE, told(Layout(precision="fp16")))
    run, linear = join(), nn.Linear(4, 4)
    model = run.parallelize(linear)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    state = run.track(model=model, optimizer=optimizer)
    steps = state.steps(total=2)
    next(steps)
    torch.autograd.backward(model(torch.ones(2, 4)).square().mean())
    optimizer.step()
    with pytest.raises(Error, match=r"without run\.train_step") as refused:
        next(steps)
    assert state.completed == 1 and "precision: bf16" in refused.value.help


def test_a_step_with_fp16_is_one_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    own_run(monkeypatch)
    monkeypatch.setenv(VARIABLE, told(Layout(precision="fp16")))
    run = join()
    model = run.parallelize(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = run.track(model=model, optimizer=optimizer)
    for _ in state.steps(total=2):
        run.train_step(optimizer, torch.ones(2, 4), loss=lambda out: out.square().mean())
    assert state.completed == 2


# ── models that only a step can call ──


class Two:
    """A dimension of a mesh of two ranks, of which this is the first."""

    def get_local_rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def get_group(self) -> None:
        return None


def test_a_model_with_part_of_a_sequence_or_of_the_layers_is_not_called_by_the_script() -> None:
    from holdfast.train.layouts.pipeline import Pipeline, chain_of

    model: Any = llama()
    SharedContext(Two(), model, ["rope"]).adopt([model], [*model.layers])  # type: ignore[arg-type]
    with pytest.raises(Error, match=r"by itself, but parallel\.cp"):
        model(batch())
    model = llama()
    chain = chain_of(model, find_blocks(model, None))
    here = Pipeline(model, chain, Two(), Layout(pp=2)).model  # type: ignore[arg-type]
    with pytest.raises(Error, match=r"by itself, but parallel\.pp") as refused:
        here(batch())
    assert "run.train_step" in refused.value.help


# ── stages ──


class Skipping(nn.Module):
    """Its second block gets what the first one was given, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for layer in self.layers:
            x = layer(x) + first
        return x


def staged(model: nn.Module, count: int) -> list[Any]:
    """The stages of a model, as their ranks would have them."""
    from holdfast.train.layouts.pipeline import chain_of, stage_of

    chain = chain_of(model, find_blocks(model, None))
    return [stage_of(model, chain, number, count).module for number in range(count)]


def test_stages_one_after_the_other_are_the_model() -> None:
    model = llama()
    x: Any = batch()
    for stage in staged(model, 2):
        x = stage(x)
    assert torch.equal(x, model(batch()))


def test_stages_share_the_parameters_of_the_model_by_their_names() -> None:
    model = llama()
    first, last = (dict(stage.named_parameters()) for stage in staged(model, 2))
    everything = dict(model.named_parameters())
    assert not first.keys() & last.keys()
    assert {**first, **last}.keys() == everything.keys()
    assert all({**first, **last}[name] is everything[name] for name in everything)
    assert "embedding.weight" in first and "head.weight" in last


def test_blocks_are_two_less_than_a_multiple_of_the_stages_where_the_ends_have_one_less() -> None:
    from holdfast.train.layouts.pipeline import blocks_by_stage

    assert blocks_by_stage(126, 16) == [7, *[8] * 14, 7]
    assert blocks_by_stage(4, 3) == [1, 2, 1] and blocks_by_stage(4, 2) == [2, 2]
    assert blocks_by_stage(4, 6) == blocks_by_stage(5, 3) == blocks_by_stage(5, 4) == []
    model = llama()
    x: Any = batch()
    for stage in staged(model, 3):
        x = stage(x)
    assert torch.equal(x, model(batch()))


def test_a_model_that_is_no_chain_is_refused_where_it_shows() -> None:
    first, last = staged(Skipping(), 2)
    with pytest.raises(Error) as refused:
        last(first(torch.ones(2, 4)))
    assert "cannot be cut into stages at" in refused.value.what


def test_layers_that_stages_cannot_share_and_tied_weights_are_refused() -> None:
    from holdfast.train.layouts.pipeline import chain_of, require_stages

    model = llama()
    chain = chain_of(model, find_blocks(model, None))
    assert require_stages(chain, 4, "1f1b") == 4
    with pytest.raises(Error) as refused:
        require_stages(chain, 4, "interleaved")
    assert refused.value.what == "4 blocks cannot be divided among 8 stages"
    assert refused.value.help == "parallel.pp can be 1 or 2"
    model.head.weight = model.embedding.weight
    with pytest.raises(Error, match="one parameter"):
        chain_of(model, find_blocks(model, None))
    model = Skipping()
    model.bias = nn.Parameter(torch.zeros(4))
    with pytest.raises(Error, match="belongs to no stage"):
        chain_of(model, find_blocks(model, None))
