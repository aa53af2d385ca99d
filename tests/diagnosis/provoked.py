"""Ways to make installed libraries print what excerpts of known problems say.

Each raises what its excerpts quote, in this process and without a network or a GPU, so that a new
version of a library that words a message differently is noticed.
"""

import contextlib
import gzip
import importlib
import io
import os
import pickle
import socket
import struct
import sys
import tarfile
import threading
import traceback
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist
from PIL import Image
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.api import CheckpointException
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

Provoke = Callable[[Path], object]
PROVOKED: dict[str, Provoke] = {}
APART: set[str] = set()
WITHOUT_CUDA = torch.version.cuda is None
OTHERWISE = {
    "nccl_not_built_in": WITHOUT_CUDA,
    "no_cuda_in_torch": WITHOUT_CUDA,
    "lambda_pickled": sys.version_info < (3, 13),
}
"""Those that another build of PyTorch, or another Python, words differently: whether this one is
the one that is quoted."""
STATE = {"weight": torch.zeros(1000)}
PIECE = 1000  # bytes that are left of a file
DCP = "torch.distributed.checkpoint"
PAGE = b"<html><head><title>503 Service Unavailable</title></head></html>"


def way(provoke: Provoke) -> Provoke:
    """Known by its name."""
    PROVOKED[provoke.__name__] = provoke
    return provoke


def apart(provoke: Provoke) -> Provoke:
    """Likewise, by a process of its own."""
    APART.add(provoke.__name__)
    return way(provoke)


def provoke(name: str, folder: Path) -> str:
    """What Python prints last of the exception that it raises."""
    try:
        PROVOKED[name](folder)
    except (Exception, CheckpointException) as error:  # which is no Exception
        return "".join(traceback.format_exception_only(error))
    return ""


def tell(name: str, folder: str) -> NoReturn:
    """The same on standard output, and the end of this process: a process group that an exception
    has kept alive is destroyed with the lock of the interpreter, and then may wait for one of its
    own threads, which waits for that lock."""
    sys.stdout.write(provoke(name, Path(folder)))
    sys.stdout.flush()
    os._exit(0)


def backward(loss: Any) -> object:
    """What Tensor.backward does, which torch leaves without types."""
    return loss.backward()


@contextlib.contextmanager
def group_of_one() -> Iterator[None]:
    """A process group of this process alone, on no port."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Unused(torch.nn.Module):
    """A model of which one layer gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.used(x)


class Twice(torch.nn.Module):
    """A model of which one layer gets its gradient twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        first = checkpoint(self.layer, x, use_reentrant=True)
        return checkpoint(self.layer, first, use_reentrant=True)


# ── collectives ───────────────────────────────────────────────────────────────────────────────


@way
def nccl_not_built_in(_: Path) -> object:
    return dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)


@way
def no_rank_in_environment(_: Path) -> object:
    kept = os.environ.pop("RANK", None)
    try:
        return dist.init_process_group("gloo", init_method="env://")
    finally:
        if kept is not None:
            os.environ["RANK"] = kept


@way
def sampler_without_a_rank(_: Path) -> object:
    samples: Any = [1]
    return DistributedSampler(samples, num_replicas=4, rank=-1)


@way
def no_process_group(_: Path) -> object:
    return dist.all_reduce(torch.ones(1))


@apart
def rank_too_high(_: Path) -> object:
    with group_of_one():
        return dist.new_group([3])


@apart
def no_such_interface(_: Path) -> object:
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0x"
    try:
        with group_of_one():
            return None
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]


@apart
def unused_parameters(_: Path) -> object:
    with group_of_one():
        model = DistributedDataParallel(Unused())
        for _step in range(2):
            backward(model(torch.ones(2, 4)).sum())
        return None


@apart
def ready_twice(_: Path) -> object:
    with group_of_one():
        model = DistributedDataParallel(Twice(), find_unused_parameters=True)
        return backward(model(torch.ones(2, 4, requires_grad=True)).sum())


# ── devices ───────────────────────────────────────────────────────────────────────────────────


@way
def no_cuda_in_torch(_: Path) -> object:
    return torch.ones(1).cuda()


@way
def checkpoint_of_a_gpu(_: Path) -> object:
    serialization: Any = torch.serialization
    return serialization._deserialize("cuda", None, "cuda:0")


@way
def backend_raises(_: Path) -> object:
    def refuse(*_: object) -> Any:
        raise ValueError("not me")

    try:
        return torch.compile(lambda x: x + 1, backend=refuse)(torch.ones(2))
    finally:
        torch.compiler.reset()


# ── the script's ──────────────────────────────────────────────────────────────────────────────


@way
def matrices_do_not_fit(_: Path) -> object:
    return torch.nn.Linear(512, 10)(torch.ones(32, 784))


@way
def sizes_differ(_: Path) -> object:
    return torch.ones(3) + torch.ones(4)


@way
def view_does_not_fit(_: Path) -> object:
    return torch.ones(12).view(5, 3)


@way
def channels_differ(_: Path) -> object:
    return torch.nn.Conv2d(3, 8, 3)(torch.ones(1, 1, 8, 8))


@way
def samples_of_two_sizes(_: Path) -> object:
    samples: Any = [torch.ones(3, 224), torch.ones(3, 225)]
    return next(iter(DataLoader(samples, batch_size=2)))


@way
def joined_do_not_fit(_: Path) -> object:
    return torch.cat([torch.ones(2, 3), torch.ones(3, 4)])


@way
def expansion_does_not_fit(_: Path) -> object:
    return torch.ones(3).expand(2, 4)


@way
def labels_do_not_fit(_: Path) -> object:
    return torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.ones(3).long())


@way
def targets_do_not_fit(_: Path) -> object:
    return torch.nn.functional.binary_cross_entropy_with_logits(torch.ones(2), torch.ones(3))


@way
def rows_of_two_lengths(_: Path) -> object:
    return torch.tensor([[1, 2], [3]])


@way
def no_samples(_: Path) -> object:
    return RandomSampler([])


@way
def one_sample(_: Path) -> object:
    return torch.nn.BatchNorm1d(4)(torch.ones(1, 4))


@way
def not_for_floats(_: Path) -> object:
    return torch.ones(3).bincount()


@way
def scaled_half(_: Path) -> object:
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.half))
    weight.grad = torch.ones_like(weight)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    scaler.unscale_(torch.optim.SGD([weight]))
    return None


@way
def recomputed_in_another_shape(_: Path) -> object:
    return recomputed(lambda x: x * x, lambda x: (x[:2] * x[:2]).repeat(2))


@way
def recomputed_with_less(_: Path) -> object:
    return recomputed(lambda x: (x * x).exp(), lambda x: x * x)


@way
def meta_and_cpu(_: Path) -> object:
    return torch.ones(2) + torch.ones(2, device="meta")


@way
def half_into_float(_: Path) -> object:
    return torch.nn.Linear(4, 4)(torch.ones(2, 4, dtype=torch.half))


@way
def half_into_a_convolution(_: Path) -> object:
    return torch.nn.Conv1d(2, 2, 1)(torch.ones(1, 2, 4, dtype=torch.half))


@way
def key_of_another_type(_: Path) -> object:
    query = torch.ones(1, 1, 2, 4)
    return torch.nn.functional.scaled_dot_product_attention(query, query.half(), query)


@way
def state_of_another_model(_: Path) -> object:
    return torch.nn.Linear(4, 4).load_state_dict(torch.nn.Linear(5, 4).state_dict())


@way
def checkpoint_of_other_sizes(folder: Path) -> object:
    library(DCP).save({"w": torch.ones(4)}, checkpoint_id=folder)
    return library(DCP).load({"w": torch.ones(5)}, checkpoint_id=folder)


@way
def checkpoint_without_a_key(folder: Path) -> object:
    library(DCP).save({"w": torch.ones(4)}, checkpoint_id=folder)
    return library(DCP).load({"v": torch.ones(4)}, checkpoint_id=folder)


@way
def zip_cut(folder: Path) -> object:
    torch.save(STATE, folder / "cut.pt")
    return torch.load(cut(folder / "cut.pt"))


@way
def old_format_cut(folder: Path) -> object:
    torch.save(STATE, folder / "cut.pt", _use_new_zipfile_serialization=False)
    return torch.load(cut(folder / "cut.pt"))


@way
def pointer_of_git_lfs(folder: Path) -> object:
    (folder / "model.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a")
    return torch.load(folder / "model.pt")


@way
def safetensors_cut(folder: Path) -> object:
    safetensors.torch.save_file(STATE, folder / "cut.safetensors")
    return safetensors.torch.load_file(cut(folder / "cut.safetensors"))


@way
def safetensors_empty(folder: Path) -> object:
    (folder / "empty.safetensors").write_bytes(b"")
    return safetensors.torch.load_file(folder / "empty.safetensors")


@way
def pickle_cut(_: Path) -> object:
    return pickle.loads(pickle.dumps(list(range(1000)))[:100])


@way
def pickle_empty(_: Path) -> object:
    return pickle.load(io.BytesIO(b""))


@way
def page_instead_of_a_pickle(_: Path) -> object:
    return pickle.loads(PAGE)


@way
def array_cut(folder: Path) -> object:
    np.save(folder / "cut.npy", np.ones(1000))
    return np.load(cut(folder / "cut.npy"))


@way
def parquet_cut(folder: Path) -> object:
    arrow, parquet = library("pyarrow"), library("pyarrow.parquet")
    parquet.write_table(arrow.table({"x": range(PIECE)}), folder / "0.parquet")
    return parquet.read_table(cut(folder / "0.parquet"))


@way
def parquet_empty(folder: Path) -> object:
    (folder / "0.parquet").write_bytes(b"")
    return library("pyarrow.parquet").read_table(folder / "0.parquet")


@way
def page_instead_of_an_image(_: Path) -> object:
    return Image.open(io.BytesIO(PAGE))


@way
def image_cut(folder: Path) -> object:
    Image.new("RGB", (640, 640)).save(folder / "0.jpg")
    return Image.open(cut(folder / "0.jpg")).load()


@way
def page_instead_of_a_zip(_: Path) -> object:
    return zipfile.ZipFile(io.BytesIO(PAGE))


@way
def tar_cut(folder: Path) -> object:
    (folder / "0.txt").write_bytes(bytes(PIECE))
    with tarfile.open(folder / "0.tar", "w") as tar:
        tar.add(folder / "0.txt", "0.txt")
    with tarfile.open(cut(folder / "0.tar")) as tar:
        return tar.extractfile(tar.getmembers()[0]).read()  # type: ignore[union-attr]


@way
def gzip_cut(_: Path) -> object:
    return gzip.decompress(gzip.compress(bytes(PIECE))[:20])


@way
def hdf5_cut(folder: Path) -> object:
    hdf5 = library("h5py")
    with hdf5.File(folder / "0.h5", "w") as file:
        file["x"] = range(PIECE)
    return hdf5.File(cut(folder / "0.h5"))


class OfOurs:
    """What torch.load does not know."""


@way
def class_in_a_checkpoint(folder: Path) -> object:
    torch.save(OfOurs(), folder / "ours.pt")
    return torch.load(folder / "ours.pt")


@way
def changed_in_place(_: Path) -> object:
    grown = torch.ones(3, requires_grad=True).exp()
    grown += 1
    return backward(grown.sum())


@way
def leaf_changed_in_place(_: Path) -> object:
    leaf = torch.ones(3, requires_grad=True)
    leaf += 1
    return leaf


@way
def backward_again(_: Path) -> object:
    x = torch.ones(3, requires_grad=True)
    loss = (x * x).sum()
    backward(loss)
    return backward(loss)


@way
def no_gradient_wanted(_: Path) -> object:
    return backward(torch.ones(3).sum())


@way
def not_a_number(_: Path) -> object:
    with torch.autograd.detect_anomaly():
        x = torch.zeros(3, requires_grad=True)
        return backward((x * torch.log(x)).sum())


@way
def token_too_large(_: Path) -> object:
    return torch.nn.Embedding(4, 2)(torch.tensor([5]))


@way
def label_too_large(_: Path) -> object:
    return torch.nn.functional.cross_entropy(torch.ones(2, 3), torch.tensor([0, 7]))


@way
def lambda_pickled(_: Path) -> object:
    return pickle.dumps(lambda: 1)


@way
def lock_pickled(_: Path) -> object:
    return pickle.dumps(threading.Lock())


@way
def calls_itself(folder: Path) -> object:
    return calls_itself(folder)


@way
def module_missing(_: Path) -> object:
    return __import__("flash_attn_of_another_version")


@way
def name_missing(_: Path) -> object:
    exec("from torch.nn import LlamaFlashAttention2")
    return None


@way
def attribute_gone(_: Path) -> object:
    numpy: Any = np
    return numpy.float


@way
def keyword_unknown(_: Path) -> object:
    layer: Any = torch.nn.Linear
    return layer(1, 2, evaluation_strategy="steps")


# ── the machine ───────────────────────────────────────────────────────────────────────────────


@way
def disk_full(_: Path) -> object:
    with open("/dev/full", "w", buffering=1) as full:
        return full.write("checkpoint\n")


@way
def too_much_memory(_: Path) -> object:
    return torch.empty(1 << 50)


@way
def too_large_an_array(_: Path) -> object:
    return np.ones(1 << 50)


@way
def no_such_file(_: Path) -> object:
    return open("data/train.bin", "rb")


@way
def folder_exists(folder: Path) -> object:
    folder.mkdir()
    return None


@way
def no_such_folder(folder: Path) -> object:
    torch.save({}, folder / "run-7" / "model.pt")
    return None


@way
def connection_reset(_: Path) -> object:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            taken, _peer = server.accept()
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            taken.close()
            return client.recv(1)


@way
def connection_refused(_: Path) -> object:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        return socket.create_connection(unused.getsockname())


def library(name: str) -> Any:
    """One without types, imported by those who need it."""
    return importlib.import_module(name)


def recomputed(first: Callable[[Any], Any], again: Callable[[Any], Any]) -> object:
    """A checkpointed forward pass that is another one when it is recomputed."""
    passes = iter([first, again])
    x = torch.ones(4, requires_grad=True)
    return backward(checkpoint(lambda x: next(passes)(x), x, use_reentrant=False).sum())


def cut(path: Path) -> Path:
    """The file, of which the end is missing."""
    os.truncate(path, PIECE)
    return path
