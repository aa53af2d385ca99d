"""Let a trained Llama write: of a checkpoint from any layout, on one process.

    holdfast checkpoint export llm --form torch --to out
    python examples/llm/sample.py out/checkpoint.pt --prompt "def "

The size of the model follows from its parameters, but for heads, context and chosen experts.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from llama import Llama, Shape


def shape_of(parameters: Mapping[str, Tensor], known: Shape) -> Shape:
    """What these parameters are of; `known` has what they do not tell."""
    vocabulary, width = parameters["embedding.weight"].shape
    head_width = width // known.heads
    layer = "layers.0.network."
    experts = parameters.get(f"{layer}experts.gate")
    return replace(
        known,
        vocabulary=vocabulary,
        width=width,
        layers=len([name for name in parameters if name.endswith("attention.query.weight")]),
        kv_heads=len(parameters["layers.0.attention.key.weight"]) // head_width,
        hidden=len(parameters[f"{layer}up.weight"]) if experts is None else experts.shape[2],
        experts=0 if experts is None else len(experts),
    )


@torch.no_grad()
def continued(model: Llama, prompt: bytes, count: int, temperature: float) -> bytes:
    """The prompt and `count` bytes more."""
    context = len(model.rope)
    tokens = torch.tensor([*prompt])[None]
    for _ in range(count):
        scores = model(tokens[:, -context:])[0, -1] / temperature
        following = torch.multinomial(scores.softmax(-1), 1)
        tokens = torch.cat([tokens, following[None]], dim=1)
    return bytes(tokens[0].tolist())


def main() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="what `--form torch` has written")
    parser.add_argument("--prompt", default="def ")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--length", type=int, default=200, help="bytes of each")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--context", type=int, default=Shape.context)
    parser.add_argument("--heads", type=int, default=Shape.heads)
    parser.add_argument("--active-experts", type=int, default=Shape.active_experts)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    parameters = torch.load(args.checkpoint, weights_only=True)["model"]
    known = Shape(context=args.context, heads=args.heads, active_experts=args.active_experts)
    model = Llama(shape_of(parameters, known))
    model.load_state_dict(parameters)
    torch.manual_seed(args.seed)
    for _ in range(args.samples):
        text = continued(model, args.prompt.encode(), args.length, args.temperature)
        print(text.decode(errors="replace"), end="\n\n")


if __name__ == "__main__":
    main()
