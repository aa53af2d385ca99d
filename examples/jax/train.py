"""Train a small network with JAX on all processes of a job, data-parallel, one mesh over all.

    holdfast run examples/jax/job.yaml          # two processes, killed and restored as you like
    python examples/jax/train.py --steps 100    # the same script by itself

`jax.distributed.initialize()` needs no arguments: Holdfast says where the coordinator is, which
process this is and how many there are. The state is a tree of arrays; it is kept after each step.
"""

import argparse

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from holdfast.pytrees import join

WIDTH = 64
Tree = dict[str, jax.Array]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per process and step")
    parser.add_argument("--lr", type=float, default=0.05)
    return parser.parse_args()


def network(key: jax.Array) -> Tree:
    """Two layers, as a tree of arrays."""
    first, second = jax.random.split(key)
    return {
        "in": jax.random.normal(first, (2, WIDTH)),
        "shift": jnp.zeros(WIDTH),
        "out": jax.random.normal(second, (WIDTH,)) / WIDTH**0.5,
    }


def loss_of(params: Tree, points: jax.Array, above: jax.Array) -> jax.Array:
    """Points in the plane, by which side of a sine curve they are on."""
    scores = jax.nn.relu(points @ params["in"] + params["shift"]) @ params["out"]
    return jnp.mean(jnp.logaddexp(0.0, scores) - above * scores)


@jax.jit
def update(
    params: Tree, speed: Tree, points: jax.Array, above: jax.Array, lr: float
) -> tuple[Tree, Tree, jax.Array]:
    """A step of SGD with momentum; XLA averages over all processes, because the mean does."""
    loss, slope = jax.value_and_grad(loss_of)(params, points, above)
    speed = jax.tree.map(lambda v, g: 0.9 * v + g, speed, slope)
    return jax.tree.map(lambda p, v: p - lr * v, params, speed), speed, loss


def main() -> None:
    args = arguments()
    run = join()  # the lines above run ahead of time on warm workers
    if run.world_size > 1:
        jax.distributed.initialize()
    mesh = Mesh(jax.devices(), ("data",))
    everywhere = NamedSharding(mesh, PartitionSpec())
    divided = NamedSharding(mesh, PartitionSpec("data"))

    params = jax.jit(lambda: network(jax.random.key(0)), out_shardings=everywhere)()
    speed = jax.tree.map(jnp.zeros_like, params)
    key = jax.random.fold_in(jax.random.key(1), run.rank)  # other samples on each process
    state = run.track(params=params, speed=speed, key=key)
    print(f"{jax.process_count()} processes, from step {state.completed}", flush=True)
    for step in state.steps(args.steps):
        state.key, now = jax.random.split(state.key)
        points = jax.random.uniform(now, (args.batch_size, 2), minval=-3.0, maxval=3.0)
        above = (points[:, 1] > jnp.sin(2.0 * points[:, 0])).astype(jnp.float32)
        points, above = (
            jax.make_array_from_process_local_data(divided, jax.device_get(one))
            for one in (points, above)
        )
        state.params, state.speed, loss = update(state.params, state.speed, points, above, args.lr)
        run.log(loss=loss, tokens=args.batch_size)
        if run.rank == 0 and (step + 1) % 100 == 0:
            print(f"step {step + 1:5d}  loss {float(loss):.4f}", flush=True)


if __name__ == "__main__":
    main()
