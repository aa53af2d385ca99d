"""The shape of a decoder-only transformer: its parameters, and what a token costs.

Read from the configuration of a Hugging Face model or from a few numbers. Only kinds of models
whose formulas are known here are taken: a plan of a model that was guessed would be worth nothing.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from holdfast.errors import Error, shown

GATED = frozenset(
    (
        *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma"),
        *("gemma2", "olmo", "olmo2", "phi3", "granite", "internlm2", "stablelm"),
    )
)
"""Kinds of models with SwiGLU or GeGLU: three matrices in the MLP, and no biases to speak of."""
TIED = frozenset(("gemma", "gemma2", "gpt2", "gpt_neo", "opt", "bloom", "starcoder2"))
"""Kinds whose output matrix is that of the embedding where their configuration does not say."""
PLAIN = frozenset(("gpt2", "gpt_neox", "gpt_neo", "opt", "bloom", "starcoder2"))
"""Kinds of models with two matrices in the MLP, biases and dropout."""
NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "vocab": ("vocab_size",),
    "sequence": ("max_position_embeddings", "n_positions", "n_ctx", "seq_length"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "experts": ("num_local_experts", "num_experts"),
    "active_experts": ("num_experts_per_tok",),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_ffn": ("shared_expert_intermediate_size",),
}
"""Our numbers, and what configurations call them."""
REQUIRED = ("layers", "hidden", "heads", "vocab", "sequence")
WHOLE_MAX = 10**9
FEW_MAX = 10_000
FEW = frozenset(("layers", "heads", "kv_heads", "experts", "active_experts"))
"""Numbers whose divisors are tried one by one."""


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer. Zero where a default follows from the other numbers."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    sequence: int
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    experts: int = 0
    active_experts: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    gated: bool = True
    tied: bool = False

    @property
    def query_dim(self) -> int:
        """Width of all query heads together."""
        return self.heads * (self.head_dim or self.hidden // self.heads)

    @property
    def kv_dim(self) -> int:
        """Width of all key heads together."""
        return self.query_dim * (self.kv_heads or self.heads) // self.heads

    @property
    def mlp_dim(self) -> int:
        """Width of the MLP; of one expert where there are experts."""
        dense = self.ffn or 4 * self.hidden
        return (self.expert_ffn or dense) if self.experts else dense

    @property
    def active_mlp_dim(self) -> int:
        """Width of all MLPs that one token goes through."""
        return (
            self.mlp_dim * self.active_experts + self.shared_ffn if self.experts else self.mlp_dim
        )

    @property
    def matrices(self) -> int:
        """Matrices of one MLP."""
        return 3 if self.gated else 2

    @property
    def attention_params(self) -> int:
        """Of one layer: queries, keys, values, output."""
        return 2 * self.hidden * (self.query_dim + self.kv_dim)

    @property
    def expert_params(self) -> int:
        """Of one layer: the experts, which expert parallelism spreads."""
        return self.experts * self.matrices * self.hidden * self.mlp_dim

    @property
    def layer_params(self) -> int:
        """Of one layer without its experts. Biases and norms as in a GPT: 13 h."""
        dense = self.shared_ffn if self.experts else self.mlp_dim
        small = 2 * self.hidden if self.gated else 13 * self.hidden
        router = self.experts * self.hidden
        return self.attention_params + self.matrices * self.hidden * dense + router + small

    @property
    def embedding_params(self) -> int:
        """Of the first stage: tokens, and positions where they are learned."""
        positions = 0 if self.gated else self.sequence
        return (self.vocab + positions) * self.hidden

    @property
    def head_params(self) -> int:
        """Of the last stage beside its layers, unless it is the first one, too."""
        return 0 if self.tied else self.vocab * self.hidden

    @property
    def params(self) -> int:
        """All of them. With tied embeddings and 4 h in the MLP this is 12lh² + 13lh + (V + s)h, and
        the last norm. Source: Narayanan et al., arXiv 2104.04473, equation 2.
        """
        layers = self.layers * (self.layer_params + self.expert_params)
        norm = self.hidden if self.gated else 2 * self.hidden
        return layers + self.embedding_params + self.head_params + norm

    @property
    def active_params(self) -> int:
        """Those that one token is multiplied with in the layers, and the output matrix."""
        mlp = self.matrices * self.hidden * self.active_mlp_dim + self.experts * self.hidden
        return self.layers * (self.attention_params + mlp) + self.vocab * self.hidden

    def forward_flops(self, *, causal: bool = True) -> float:
        """Of one token: 2 for each active parameter, 4·s·h in the attention of each layer.

        `causal` counts the half of attention that is not masked away. Source: as for `params`,
        equation 3, which counts all of it.
        """
        seen = self.sequence / 2 if causal else self.sequence
        return 2.0 * self.active_params + 4.0 * self.layers * seen * self.query_dim


def from_config(config: Mapping[str, Any], sequence: int | None = None) -> ModelShape:
    """The shape in a Hugging Face config.json. Raises `Error` plan-invalid."""
    kind = config.get("model_type")
    if kind not in GATED | PLAIN or config.get("is_encoder_decoder"):
        raise _unknown(
            f"the formulas of model_type {shown(kind)} are not known",
            f"give its numbers instead ({', '.join(REQUIRED)}, ...); known are "
            + ", ".join(sorted(GATED | PLAIN)),
        )
    found = {ours: _first(config, theirs) for ours, theirs in NAMES.items()}
    numbers = {name: value for name, value in found.items() if value is not None}
    if sequence is not None:
        numbers["sequence"] = sequence
    tied = config.get("tie_word_embeddings", kind in TIED)
    return _built({**numbers, "gated": kind in GATED, "tied": bool(tied)})


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def from_numbers(numbers: Mapping[str, Any], sequence: int | None = None) -> ModelShape:
    """The shape in `layers=...` and the like. Raises `Error` plan-invalid."""
    known = [field.name for field in fields(ModelShape)]
    for name in numbers:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise _unknown(f"a model has no number {shown(name)}", meant)
    return _built({**numbers, **({} if sequence is None else {"sequence": sequence})})


def _built(numbers: dict[str, Any]) -> ModelShape:
    missing = [name for name in REQUIRED if name not in numbers]
    if missing:
        theirs = " or ".join(NAMES[missing[0]])
        raise _unknown(f"the model lacks {missing[0]}", f"{theirs} in a config.json; or a number")
    for name, value in numbers.items():
        flag, most = name in ("gated", "tied"), FEW_MAX if name in FEW else WHOLE_MAX
        least = int(name in REQUIRED)
        if not isinstance(value, bool) if flag else not _is_count(value, least, most):
            wanted = "true or false" if flag else f"a whole number from {least} to {most:,}"
            raise _unknown(f"{name} is {shown(value)}", f"it must be {wanted}")
    return _possible(ModelShape(**numbers))


def _is_count(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _possible(model: ModelShape) -> ModelShape:
    if not model.head_dim and model.hidden % model.heads:
        fits = f"numbers of heads that divide it: {divisors_of(model.hidden, 256)}"
        raise _unknown(f"hidden {model.hidden} is not divisible by heads {model.heads}", fits)
    if model.kv_heads and model.heads % model.kv_heads:
        fits = f"numbers that divide it: {divisors_of(model.heads, model.heads)}"
        raise _unknown(f"heads {model.heads} is not divisible by kv_heads {model.kv_heads}", fits)
    if bool(model.experts) != bool(model.active_experts) or model.active_experts > model.experts:
        raise _unknown(
            f"{model.active_experts} active experts of {model.experts} are impossible",
            "experts and active_experts belong together, the second at most the first",
        )
    return model


def divisors_of(number: int, most: int) -> str:
    """What divides `number`, up to `most`, in words."""
    return ", ".join(str(d) for d in range(1, min(number, most) + 1) if number % d == 0)


def _unknown(why: str, remedy: str) -> Error:
    return Error("plan-invalid", "the model cannot be planned for", why=why, help=remedy)
