"""ResNet-50 as in "Deep Residual Learning for Image Recognition", with the stride in the 3x3
convolution and the names of parameters that torchvision has, so that its weights can be loaded.

Written out because torchvision's package on the index brings operators that only load beside the
CUDA build of torch; `torchvision.models.resnet50()` can take its place.
"""

from torch import Tensor, nn

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride
EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, and around them what came in."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        added: Tensor = self.relu(out + (x if self.downsample is None else self.downsample(x)))
        return added


class ResNet50(nn.Module):
    """25.6 million parameters with 1,000 classes."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = 64
        for number, (width, blocks, stride) in enumerate(STAGES, start=1):
            first = Bottleneck(inputs, width, stride)
            inputs = width * EXPANSION
            rest = [Bottleneck(inputs, width, 1) for _ in range(blocks - 1)]
            self.add_module(f"layer{number}", nn.Sequential(first, *rest))
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)  # each block begins as the identity

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for number in range(1, len(STAGES) + 1):
            x = getattr(self, f"layer{number}")(x)
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits
