"""Trees of JAX in memory and in checkpoints of Orbax, by the real packages: in a process of its
own, because JAX has threads, and tests fork."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.checkpoint import orbax_form
from holdfast.errors import Error
from tests.tidy.source import ROOT

FROM_MEMORY = """
import jax
from tests.pytrees.test_cells import there_and_back
tree = {"w": jax.numpy.arange(6, dtype="bfloat16"), "key": jax.random.key(3)}
back = there_and_back(tree)
assert back["w"].dtype == "bfloat16" and (back["w"] == tree["w"]).all()
assert (jax.random.key_data(back["key"]) == jax.random.key_data(tree["key"])).all()
"""
BOTH_WAYS = """
import json, sys
from pathlib import Path
from typing import NamedTuple
import jax.numpy as jnp, numpy as np, orbax.checkpoint as ocp
from holdfast.errors import Error
from holdfast.pytrees import orbax

class Moments(NamedTuple):
    mu: object
    nu: object

here = Path(sys.argv[1])
tree = {"w": jnp.arange(6.0, dtype=jnp.bfloat16).reshape(2, 3), "b": [np.ones(3), 2],
        "m": Moments(np.zeros(2), np.full(2, 7.0))}
like = {"w": jnp.zeros((2, 3), jnp.bfloat16), "b": [np.zeros(3), 0],
        "m": Moments(np.ones(2), np.ones(2))}
options = ocp.CheckpointManagerOptions(max_to_keep=2)
with ocp.CheckpointManager(here / "managed", options=options) as manager:
    for step in (9, 10):
        manager.save(step, args=ocp.args.StandardSave({**tree, "b": [np.ones(3), step]}))
(here / "managed" / "11.orbax-checkpoint-tmp-5").mkdir()
found = orbax.load(here / "managed", like=like)
assert found.step == 10 and int(found.tree["b"][1]) == 10, found
assert type(found.tree["m"]) is Moments and found.tree["m"].nu[1] == 7.0
assert found.tree["w"].dtype == jnp.bfloat16 and float(found.tree["w"][1, 2]) == 5.0

orbax.save(here / "saved", tree)
again = orbax.load(here / "saved", like=like)
assert again.step is None and again.tree["b"][1] == 2
theirs = ocp.PyTreeCheckpointer().restore(here / "saved")
assert np.array_equal(theirs["w"], tree["w"])

said = []
for act in (lambda: orbax.save(here / "saved", tree),
            lambda: orbax.load(here / "nothing", like=like),
            lambda: orbax.load(here / "saved", like={**like, "w": jnp.zeros((3, 2), jnp.bfloat16)}),
            lambda: orbax.load(here / "saved", like={"other": like["w"]})):
    try:
        said.append(str(act()))
    except Error as error:
        said.append(error.slug)
print(json.dumps(said))
"""


def test_types_of_jax_come_back_from_memory_and_a_tree_goes_to_orbax_and_back(
    tmp_path: Path,
) -> None:
    if importlib.util.find_spec("orbax") is None:
        pytest.skip("orbax-checkpoint is not installed")
    ran = subprocess.run(
        [sys.executable, "-c", FROM_MEMORY + BOTH_WAYS, str(tmp_path)],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    unusable = ["checkpoint-unusable"] * 3
    assert json.loads(ran.stdout.splitlines()[-1]) == ["export-unavailable", *unusable]


def test_named_leaves_become_the_tree_that_they_are_of() -> None:
    leaves: dict[str, Any] = {
        "step": 3, "params['a']['w']": 1, "params['it\\'s']": 2, 'params["b"]': 6, "opt[0].mu": 4,
        "opt[1][<flat index 0>]": 5, "few[1]": 7,
    }  # fmt: skip
    assert orbax_form.nested(leaves) == {
        "step": 3,
        "params": {"a": {"w": 1}, "it's": 2, "b": 6},
        "opt": [{"mu": 4}, {"<flat index 0>": 5}],
        "few": {1: 7},
    }


def test_pieces_of_all_ranks_make_one_array() -> None:
    whole = np.arange(12).reshape(4, 3)
    found = orbax_form.assembled({(0, 0): whole[:2], (2, 0): whole[2:]})
    assert np.array_equal(found, whole)
    with pytest.raises(Error) as raised:
        orbax_form.assembled({(2, 0): whole[2:]})
    assert raised.value.slug == "checkpoint-incomplete"
