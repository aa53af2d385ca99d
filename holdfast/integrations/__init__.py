"""Trainers that people already use, kept going by the library underneath.

One module for each: `transformers` (Hugging Face Trainer, and what is built on it), `accelerate`,
`lightning`, `deepspeed`, `megatron`, `torchtitan`, and `torchrun`, where Holdfast is the guest. A
trainer keeps its loop; `drive` turns the loop of `holdfast.train` around, so that each of its steps
ends one of ours, and `place` knows where its data loader stands.
"""
