"""The planner's cost model beside published trainings: `python benchmarks/planning.py`."""

from holdfast.planning import validation


def main() -> None:
    """Print every comparison with its error."""
    tables = {
        "Megatron-LM, TFLOP/s per GPU": validation.megatron(),
        "Llama 3 405B, MFU": validation.llama(),
        "Korthikanti, MFU": validation.recomputation(),
        "torchtitan, tokens per GPU and second": validation.torchtitan(),
        "ZeRO, GB of state per GPU": validation.zero(),
        "GPT, parameters, activations, checkpoint": validation.gpt3(),
    }
    for title, rows in tables.items():
        print(title)
        for row in rows:
            print(f"  {row.name:32} {row.published:10.3f} {row.found:10.3f} {row.error:+7.1%}")


if __name__ == "__main__":
    main()
