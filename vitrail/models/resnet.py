"""BiT ResNets, and the ResNet stem of the hybrids.

Both have GroupNorm for every norm and standardise the weights of every convolution. BiT is pre-activation (ResNet-v2)
with fixed padding; the stem of a hybrid is post-activation and pads as TensorFlow does (SAME). Names are timm's.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import ModelConfig
from vitrail.models.card import Card
from vitrail.models.prediction import Predicts

GROUPS = 32


class StandardizedConv2d(nn.Conv2d):
    """A convolution without bias whose weights are standardised over (in, rows, columns) before use."""

    def __init__(self, inputs: int, outputs: int, kernel: int, config: ModelConfig, stride: int = 1):
        same = config.family == "vit"
        super().__init__(inputs, outputs, kernel, stride, padding=0 if same else kernel // 2, bias=False)
        self.same = same
        self.official = config.stem_arithmetic == "official"

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        padded = pad_same(input, self.kernel_size[0], self.stride[0]) if self.same else input
        return self._conv_forward(padded, self.standardized(), None)

    def standardized(self) -> Tensor:
        if self.official:
            variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
            return (self.weight - mean) / (variance.sqrt() + 1e-5)
        # Batch norm over the outputs is the same map in one fused kernel.
        flat = self.weight.reshape(1, self.out_channels, -1)
        return F.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-8).view_as(self.weight)


def pad_same(images: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """TensorFlow's SAME: pad so that the output is ceil(input / stride), the odd pixel after, not before."""
    needed = [max((math.ceil(n / stride) - 1) * stride + kernel - n, 0) for n in images.shape[-2:]]
    if not any(needed):
        return images
    rows, columns = needed
    return F.pad(images, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2), value=value)


def group_norm(channels: int, config: ModelConfig) -> nn.GroupNorm:
    return nn.GroupNorm(GROUPS, channels, eps=1e-6 if config.stem_arithmetic == "official" else 1e-5)


class Root(nn.Module):
    """7 x 7 convolution and 3 x 3 max pooling, each of stride 2. BiT has no norm here: its units start with one."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.conv = StandardizedConv2d(config.channels, config.stem_width, 7, config, stride=2)
        self.norm = group_norm(config.stem_width, config) if config.family == "vit" else None

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv(images)
        if self.norm is None:
            return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
        return F.max_pool2d(pad_same(F.relu(self.norm(x)), 3, 2, value=-math.inf), 3, 2)


class Shortcut(nn.Module):
    """The projection where a unit changes the width or the stride; post-activation units norm it."""

    def __init__(self, inputs: int, outputs: int, stride: int, config: ModelConfig):
        super().__init__()
        self.conv = StandardizedConv2d(inputs, outputs, 1, config, stride)
        self.norm = group_norm(outputs, config) if config.family == "vit" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Unit(nn.Module):
    """A bottleneck of three convolutions around which the input is added back."""

    def __init__(self, inputs: int, outputs: int, stride: int, config: ModelConfig):
        super().__init__()
        middle = outputs // 4
        self.pre_activation = config.family == "resnet"
        project = stride != 1 or inputs != outputs
        self.downsample = Shortcut(inputs, outputs, stride, config) if project else None
        norms = (inputs, middle, middle) if self.pre_activation else (middle, middle, outputs)
        self.norm1 = group_norm(norms[0], config)
        self.conv1 = StandardizedConv2d(inputs, middle, 1, config)
        self.norm2 = group_norm(norms[1], config)
        self.conv2 = StandardizedConv2d(middle, middle, 3, config, stride)
        self.norm3 = group_norm(norms[2], config)
        self.conv3 = StandardizedConv2d(middle, outputs, 1, config)

    def forward(self, x: Tensor) -> Tensor:
        if self.pre_activation:
            y = F.relu(self.norm1(x))
            shortcut = x if self.downsample is None else self.downsample(y)
            y = self.conv2(F.relu(self.norm2(self.conv1(y))))
            return shortcut + self.conv3(F.relu(self.norm3(y)))
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(shortcut + self.norm3(self.conv3(y)))


class Stage(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, units: int, config: ModelConfig):
        super().__init__()
        first = Unit(inputs, outputs, stride, config)
        self.blocks = nn.Sequential(first, *(Unit(outputs, outputs, 1, config) for _ in range(units - 1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


class PlainStem(nn.Sequential):
    """3 x 3 convolutions alone, for small pictures: the first at full size, then in each stage one that halves it."""

    def __init__(self, config: ModelConfig):
        widths, strides = [config.stem_width], [1]
        for units in config.stages or ():
            widths += [2 * widths[-1]] * units
            strides += [2] + [1] * (units - 1)
        inputs = [config.channels, *widths]
        super().__init__(*(Convolution(*each) for each in zip(inputs, widths, strides, strict=False)))


class Convolution(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(outputs // 16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


def stem(config: ModelConfig) -> nn.Module:
    """What stands before the patch projection of a hybrid."""
    if config.stem == "plain":
        return PlainStem(config)
    return Backbone(config) if config.stages else Root(config)


class Backbone(nn.Module):
    """Root and stages: images -> a feature map of `stem_width * 4 * 2 ** (stages - 1)` channels."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.stem = Root(config)
        self.stages = nn.Sequential(*stages(config))

    def forward(self, images: Tensor) -> Tensor:
        return self.stages(self.stem(images))


def stages(config: ModelConfig) -> list[Stage]:
    built, width = [], config.stem_width
    for index, units in enumerate(config.stages or ()):
        outputs = config.stem_width * 4 * 2**index
        built.append(Stage(width, outputs, 1 if index == 0 else 2, units, config))
        width = outputs
    return built


class ResNet(Predicts, nn.Module):
    """A BiT ResNet: `features(images)` averages the last feature map, `head` classifies it."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.card = Card()
        self.stem = Root(config)
        self.stages = nn.Sequential(*stages(config))
        self.norm = group_norm(self.features_width, config)
        self.head = nn.Linear(self.features_width, config.num_classes) if config.num_classes else nn.Identity()

    @property
    def features_width(self) -> int:
        return self.config.stem_width * 4 * 2 ** (len(self.config.stages or ()) - 1)

    def features(self, images: Tensor) -> Tensor:
        x = self.stages(self.stem(images))
        return F.relu(self.norm(x)).mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))

    def resize(self, image_size: int | tuple[int, int]) -> None:
        """Nothing to interpolate: a ResNet takes any size. The new one is noted in the configuration."""
        self.config = self.config.with_(image_size=image_size)

    @torch.no_grad()
    def initialise(self) -> None:
        """Convolutions as He et al., the last norm of every unit 1, the head 0 (BiT)."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)
            nn.init.constant_(self.head.bias, self.config.head_bias)
