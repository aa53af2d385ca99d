"""Tokenise text for pretrain.py: python examples/llm/prepare.py --out tokens.bin FILE...

Tokens are bytes, so there is no vocabulary to learn or load; they are written as 16-bit numbers,
which pretrain.py maps into memory. Without files the source of Python's standard library is taken,
which every machine has.
"""

import argparse
import sysconfig
from pathlib import Path

import numpy as np

LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}


def standard_library() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    files = (path for path in root.rglob("*.py"))
    return sorted(path for path in files if LEFT_OUT.isdisjoint(path.relative_to(root).parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("tokens.bin"))
    args = parser.parse_args()
    text = b"\n".join(path.read_bytes() for path in args.files or standard_library())
    unfinished = args.out.with_name(args.out.name + ".unfinished")
    np.frombuffer(text, dtype=np.uint8).astype(np.uint16).tofile(unfinished)
    unfinished.replace(args.out)
    print(f"{len(text):,} tokens in {args.out}")


if __name__ == "__main__":
    main()
