"""Models: what is read from a configuration, and what is refused."""

from typing import Any

import pytest

from holdfast.errors import Error
from holdfast.planning.model import from_config, from_numbers

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-05,
}
MIXTRAL = {
    **LLAMA_8B,
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
GEMMA = {
    **{k: v for k, v in LLAMA_8B.items() if k != "tie_word_embeddings"},
    "model_type": "gemma",
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 256000,
}
FEW: dict[str, Any] = {
    "layers": 8, "hidden": 512, "heads": 8, "vocab": 1000, "sequence": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "params"),
    [
        (LLAMA_8B, 8_030_261_248),
        (MIXTRAL, 46_702_792_704),
        ({**GPT2, "n_positions": 1024}, 124_439_808),
        (GEMMA, 2_506_172_416),
    ],
)
def test_parameters_are_those_that_the_models_are_known_to_have(
    config: dict[str, Any], params: int
) -> None:
    assert from_config(config).params == params


def test_of_experts_only_the_active_ones_are_multiplied_with() -> None:
    assert from_config(MIXTRAL).active_params / 1e9 == pytest.approx(12.7, rel=0.01)


def test_a_gpt_costs_what_the_formula_of_megatron_lm_says() -> None:
    """96·B·s·l·h²·(1 + s/6h + V/16lh) with recomputation, which is four forward passes."""
    layers, hidden, words, length = 96, 12288, 51200, 2048
    numbers = {"layers": layers, "hidden": hidden, "heads": 96, "vocab": words, "sequence": length}
    model = from_numbers({**numbers, "gated": False, "tied": True})
    share = 1 + length / (6 * hidden) + words / (16 * layers * hidden)
    expected = 96 * layers * hidden**2 * share
    # the paper's output matrix is not recomputed: 6·V·h instead of 8·V·h
    found = 4 * model.forward_flops(causal=False) - 2 * words * hidden
    assert found == pytest.approx(expected, rel=1e-9)


def test_the_sequence_can_be_chosen() -> None:
    assert from_config(LLAMA_8B, 1024).sequence == 1024
    assert from_numbers(FEW, 64).sequence == 64


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({**FEW, "layerz": 2}, "did you mean layers"),
        ({k: v for k, v in FEW.items() if k != "heads"}, "lacks heads"),
        ({**FEW, "heads": 7}, "hidden 512 is not divisible by heads 7"),
        ({**FEW, "kv_heads": 3}, "heads 8 is not divisible by kv_heads 3"),
        ({**FEW, "layers": 0}, "layers is 0"),
        ({**FEW, "layers": 10**9}, "layers is 1000000000"),
        ({**FEW, "layers": True}, "layers is True"),
        ({**FEW, "gated": 1}, "must be true or false"),
        ({**FEW, "experts": 4}, "0 active experts of 4"),
        ({**FEW, "experts": 4, "active_experts": 5}, "5 active experts of 4"),
    ],
)
def test_numbers_that_make_no_model_are_named(numbers: dict[str, Any], said: str) -> None:
    with pytest.raises(Error, match=said) as caught:
        from_numbers(numbers)
    assert caught.value.slug == "plan-invalid"


@pytest.mark.parametrize(
    "config",
    [{**LLAMA_8B, "model_type": "deepseek_v3"}, {**LLAMA_8B, "is_encoder_decoder": True}, {}],
)
def test_a_kind_of_model_that_is_not_known_is_not_guessed(config: dict[str, Any]) -> None:
    with pytest.raises(Error, match="are not known"):
        from_config(config)
