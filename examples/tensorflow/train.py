"""Train a small TensorFlow model on several workers with MultiWorkerMirroredStrategy.

    holdfast run examples/tensorflow/job.yaml

Holdfast writes TF_CONFIG, from which the strategy knows the other workers: other ports, and so
another world, in each attempt. When one worker is lost the others cannot go on; all are started
again and continue from the last checkpoint. Every worker takes part in saving, though only the
first one's files are kept. Run by itself, without TF_CONFIG, the script is its only worker.
"""

import argparse
import atexit
import json
import os
import shutil
import tempfile
from pathlib import Path

import tensorflow as tf


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per worker and step")
    parser.add_argument("--save-every", type=int, default=100, help="steps")
    parser.add_argument("--out", default="checkpoints", help="folder for checkpoints")
    return parser.parse_args()


def is_first() -> bool:
    """Whether this worker's checkpoint is the one that counts."""
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {})
    return task.get("type", "worker") in ("chief", "master") or task.get("index", 0) == 0


def folder(shared: Path) -> str:
    """Where checkpoints go: shared storage for the first worker, a scratch folder for the rest."""
    if is_first():
        shared.mkdir(parents=True, exist_ok=True)
        return str(shared)
    scratch = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return scratch


def data(size: int) -> tf.data.Dataset:
    """Points in the plane, by which side of a sine curve they are on."""
    points = tf.random.stateless_uniform((4096, 2), seed=(0, 1), minval=-3.0, maxval=3.0)
    above = tf.cast(points[:, 1] > tf.sin(2.0 * points[:, 0]), tf.float32)
    return tf.data.Dataset.from_tensor_slices((points, above)).shuffle(4096).repeat().batch(size)


class Network(tf.Module):
    """Two layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        first = tf.random.stateless_normal((2, width), seed=(0, 2))
        second = tf.random.stateless_normal((width, 1), seed=(0, 3)) / width**0.5
        self.first, self.shift = tf.Variable(first), tf.Variable(tf.zeros(width))
        self.second = tf.Variable(second)

    def __call__(self, points: tf.Tensor) -> tf.Tensor:
        return tf.squeeze(tf.nn.relu(points @ self.first + self.shift) @ self.second, -1)


def main() -> None:
    args = arguments()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    workers = strategy.num_replicas_in_sync
    with strategy.scope():
        model = Network()
    steps = tf.Variable(0, dtype=tf.int64)  # outside: each worker counts for itself
    shared = Path(os.environ.get("HOLDFAST_CHECKPOINT_SHARED", args.out))
    own = folder(shared)
    checkpoint = tf.train.Checkpoint(model=model, steps=steps)
    keeper = tf.train.CheckpointManager(checkpoint, own, max_to_keep=2)
    checkpoint.restore(tf.train.latest_checkpoint(shared))
    print(f"{workers} replicas, from step {steps.numpy()}", flush=True)
    batches = iter(strategy.experimental_distribute_dataset(data(args.batch_size * workers)))

    def one(points: tf.Tensor, above: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            each = tf.nn.sigmoid_cross_entropy_with_logits(labels=above, logits=model(points))
            loss = tf.reduce_mean(each)
        variables = model.trainable_variables
        mine = tape.gradient(loss, variables)
        context = tf.distribute.get_replica_context()
        for variable, mean in zip(variables, context.all_reduce("MEAN", mine), strict=True):
            variable.assign_sub(0.1 * mean)
        return loss

    @tf.function
    def step() -> tf.Tensor:
        losses = strategy.run(one, args=next(batches))
        return strategy.reduce("MEAN", losses, axis=None)

    while (done := int(steps.numpy())) < args.steps:
        loss = step()
        done += 1
        steps.assign(done)
        if done % args.save_every == 0 or done == args.steps:
            keeper.save(checkpoint_number=done)
            print(f"step {done:5d}  loss {loss.numpy():.4f}", flush=True)


if __name__ == "__main__":
    main()
