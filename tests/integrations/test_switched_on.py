"""Where the forkserver has not imported a trainer ahead, a worker switches its integration on in
the middle of the script's own import."""

import subprocess
import sys

import pytest

from tests.more import sample
from tests.tidy.source import ROOT

SEEN = """
from holdfast import trainer_hook
trainer_hook.watch()
{statement}
import sys
ours = sys.modules["holdfast.integrations.{name}"]
sys.exit(0 if ours._switch.automatic else "left alone")
"""


@pytest.mark.parametrize(
    ("name", "statement"),
    sample(
        [("lightning", "import lightning")],
        [
            ("lightning", "from lightning.pytorch.trainer.trainer import Trainer"),
            ("lightning", "from lightning.fabric import Fabric"),
            ("transformers", "from transformers import Trainer"),
            ("transformers", "import transformers.trainer"),
        ],
    ),
)
def test_whatever_of_it_a_script_imports_first(name: str, statement: str) -> None:
    script = SEEN.format(name=name, statement=statement)
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
