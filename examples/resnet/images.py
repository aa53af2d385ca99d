"""ImageNet as a folder with one folder per class, or generated images for trying things out."""

import math
import random
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

Sample = tuple[Tensor, int]
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)  # of ImageNet
DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
SUFFIXES = {".jpeg", ".jpg", ".png"}


class ImageFolder(Dataset[Sample]):
    """`ROOT/CLASS/NAME.jpeg`; classes are numbered in the order of their names."""

    def __init__(self, root: Path, size: int, *, training: bool) -> None:
        self.classes = sorted(path.name for path in root.iterdir() if path.is_dir())
        self.samples = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((root / name).iterdir())
            if path.suffix.lower() in SUFFIXES
        ]
        self._size, self._training = size, training

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Sample:
        path, label = self.samples[number]
        with Image.open(path) as file:
            image = file.convert("RGB")
        cut = random_crop(image.size) if self._training else central_crop(image.size)
        image = image.resize((self._size, self._size), Image.Resampling.BILINEAR, box=cut)
        flipped = self._training and random.random() < 0.5
        if flipped:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        raw = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        pixels = raw.view(self._size, self._size, 3).permute(2, 0, 1).float() / 255
        return (pixels - MEAN) / DEVIATION, label


class Generated(Dataset[Sample]):
    """Each class is a colour with noise on it: learnt within a few steps, and no download."""

    def __init__(self, count: int, size: int, classes: int) -> None:
        self.classes = [f"class-{number}" for number in range(classes)]
        self._count, self._size = count, size
        chance = torch.Generator().manual_seed(0)
        self._colours = torch.randn(classes, 3, 1, 1, generator=chance)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Sample:
        label = number % len(self.classes)
        chance = torch.Generator().manual_seed(number)
        noise = torch.randn(3, self._size, self._size, generator=chance)
        return self._colours[label] + 0.5 * noise, label


Box = tuple[float, float, float, float]


def random_crop(size: tuple[int, int]) -> Box:
    """8 % to 100 % of the area, sides of 3:4 to 4:3; the centre if none of ten tries fits."""
    width, height = size
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        across, down = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if across <= width and down <= height:
            left, top = random.uniform(0, width - across), random.uniform(0, height - down)
            return left, top, left + across, top + down
    return central_crop(size)


def central_crop(size: tuple[int, int]) -> Box:
    """The square in the middle, 7/8 of the shorter side, as 224 of 256."""
    side = min(size) * 7 / 8
    left, top = (size[0] - side) / 2, (size[1] - side) / 2
    return left, top, left + side, top + side
