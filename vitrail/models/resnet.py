"""BiT ResNets, and the ResNet stem of the hybrids.

Both use GroupNorm throughout and standardise the weights of every convolution. BiT has norm and ReLU before each
convolution (pre-activation, ResNet-v2) and fixed padding; a hybrid's stem has them after it and pads like TensorFlow
(SAME). The names of the tensors are timm's.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import ModelConfig
from vitrail.models.card import Card
from vitrail.models.prediction import Predicts

_GROUPS = 32
"""The number of groups of every GroupNorm."""


class StandardizedConv2d(nn.Conv2d):
    """A convolution without bias whose weights are standardised over (inputs, rows, columns) before use."""

    def __init__(self, inputs: int, outputs: int, kernel: int, config: ModelConfig, stride: int = 1):
        same = config.family == "vit"
        super().__init__(inputs, outputs, kernel, stride, padding=0 if same else kernel // 2, bias=False)
        self.same = same
        self.official = config.stem_arithmetic == "official"

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Convolves feature maps (batch, inputs, rows, columns)."""
        padded = pad_same(input, self.kernel_size[0], self.stride[0]) if self.same else input
        return self._conv_forward(padded, self.standardized(), None)

    def standardized(self) -> Tensor:
        """Returns the weights with mean 0 and variance 1 for each output."""
        if self.official:
            variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
            return (self.weight - mean) / (variance.sqrt() + 1e-5)
        # Batch norm with the outputs as channels computes the same in one fused kernel.
        flat = self.weight.reshape(1, self.out_channels, -1)
        return F.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-8).view_as(self.weight)


def pad_same(images: Tensor, kernel: int, stride: int, value: float = 0.0) -> Tensor:
    """Pads like TensorFlow's SAME, so that the output has ceil(input / stride) pixels; an odd pixel is added at the
    end."""
    needed = [max((math.ceil(n / stride) - 1) * stride + kernel - n, 0) for n in images.shape[-2:]]
    if not any(needed):
        return images
    rows, columns = needed
    return F.pad(images, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2), value=value)


def group_norm(channels: int, config: ModelConfig) -> nn.GroupNorm:
    """Makes a GroupNorm with the epsilon of the code that the configuration follows."""
    return nn.GroupNorm(_GROUPS, channels, eps=1e-6 if config.stem_arithmetic == "official" else 1e-5)


class Root(nn.Module):
    """The first layers: a 7 x 7 convolution and 3 x 3 max pooling, each of stride 2. BiT has no norm here: its units
    begin with one."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.conv = StandardizedConv2d(config.channels, config.stem_width, 7, config, stride=2)
        self.norm = group_norm(config.stem_width, config) if config.family == "vit" else None

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (batch, channels, rows, columns) to feature maps (batch, stem width, rows / 4, columns / 4)."""
        x = self.conv(images)
        if self.norm is None:
            return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
        return F.max_pool2d(pad_same(F.relu(self.norm(x)), 3, 2, value=-math.inf), 3, 2)


class Shortcut(nn.Module):
    """The projection of a unit's input, where the unit changes width or size. Units with post-activation norm it."""

    def __init__(self, inputs: int, outputs: int, stride: int, config: ModelConfig):
        super().__init__()
        self.conv = StandardizedConv2d(inputs, outputs, 1, config, stride)
        self.norm = group_norm(outputs, config) if config.family == "vit" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Projects feature maps (batch, inputs, rows, columns)."""
        return self.norm(self.conv(x))


class Unit(nn.Module):
    """A bottleneck of three convolutions, to whose output the input is added."""

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
        """Maps feature maps (batch, inputs, rows, columns) to (batch, outputs, rows / stride, columns / stride)."""
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
    """Bottleneck units of one width, the first of which may halve the size."""

    def __init__(self, inputs: int, outputs: int, stride: int, units: int, config: ModelConfig):
        super().__init__()
        first = Unit(inputs, outputs, stride, config)
        self.blocks = nn.Sequential(first, *(Unit(outputs, outputs, 1, config) for _ in range(units - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """Maps feature maps (batch, inputs, rows, columns) to (batch, outputs, rows / stride, columns / stride)."""
        return self.blocks(x)


class PlainStem(nn.Sequential):
    """A stem of 3 x 3 convolutions alone, for small pictures: one at full size, then stages whose first convolution
    halves it."""

    def __init__(self, config: ModelConfig):
        widths, strides = [config.stem_width], [1]
        for units in config.stages or ():
            widths += [2 * widths[-1]] * units
            strides += [2] + [1] * (units - 1)
        inputs = [config.channels, *widths]
        super().__init__(*(Convolution(*each) for each in zip(inputs, widths, strides, strict=False)))


class Convolution(nn.Module):
    """A 3 x 3 convolution, GroupNorm and ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(outputs // 16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps feature maps (batch, inputs, rows, columns) to (batch, outputs, rows / stride, columns / stride)."""
        return F.relu(self.norm(self.conv(x)))


def stem(config: ModelConfig) -> nn.Module:
    """Makes what a hybrid has before its patch projection."""
    if config.stem == "plain":
        return PlainStem(config)
    return Backbone(config) if config.stages else Root(config)


class Backbone(nn.Module):
    """The root and the stages of a ResNet: images -> a feature map of `stem_width * 4 * 2 ** (stages - 1)` channels."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.stem = Root(config)
        self.stages = nn.Sequential(*stages(config))

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (batch, channels, rows, columns) to feature maps."""
        return self.stages(self.stem(images))


def stages(config: ModelConfig) -> list[Stage]:
    """Makes the stages of a ResNet."""
    built, width = [], config.stem_width
    for index, units in enumerate(config.stages or ()):
        outputs = config.stem_width * 4 * 2**index
        built.append(Stage(width, outputs, 1 if index == 0 else 2, units, config))
        width = outputs
    return built


class ResNet(Predicts, nn.Module):
    """A BiT ResNet: `features` averages the last feature map, `head` classifies it."""

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
        """The number of channels of the last feature map."""
        return self.config.stem_width * 4 * 2 ** (len(self.config.stages or ()) - 1)

    def features(self, images: Tensor) -> Tensor:
        """Computes what the head is given: (batch, features width)."""
        x = self.stages(self.stem(images))
        return F.relu(self.norm(x)).mean((2, 3))

    def head_input(self, images: Tensor) -> Tensor:
        """Computes what the head is given, as `features` does."""
        return self.features(images)

    def forward(self, images: Tensor) -> Tensor:
        """Computes logits (batch, classes) for images (batch, channels, rows, columns)."""
        return self.head(self.features(images))

    def resize(self, image_size: int | tuple[int, int]) -> None:
        """Sets the image size that the configuration names. A ResNet takes any size, so nothing is interpolated."""
        self.config = self.config.with_(image_size=image_size)

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialises convolutions as He et al., norms as 1 and the head as 0, as BiT does."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)
            nn.init.constant_(self.head.bias, self.config.head_bias)
