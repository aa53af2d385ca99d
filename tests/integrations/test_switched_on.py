"""Where the forkserver has not imported a trainer ahead, a worker switches its integration on in
the middle of the script's own import."""

import subprocess

import pytest

from tests.more import sample
from tests.tidy.source import ROOT
from tests.warm import PIPE, Script

SEEN = """
import sys
assert "{name}" not in sys.modules
from holdfast import trainer_hook
trainer_hook.watch()
{statement}
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
    process = Script([script], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=PIPE, text=True)
    _, err = process.communicate()
    assert (process.returncode, err) == (0, "")
