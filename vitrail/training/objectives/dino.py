"""Self-distillation without labels (DINO; Caron and others, 2021).

A student sees two large crops of a picture and several small ones. The teacher, a running average of the student, sees
the large ones. The student learns to predict, from each crop, what the teacher returns for another. The teacher's
outputs are centred, so that no output dominates, and sharpened, so that they are not all equal: without both, student
and teacher would agree on the same answer for every picture.
"""

import copy
import math
from dataclasses import replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import DinoConfig, Preprocessing, TrainConfig, TransformConfig
from vitrail.data.loader import Batch
from vitrail.models.attention import Recorder
from vitrail.models.vit import ViT
from vitrail.tasks.base import LossSettings
from vitrail.training.objectives.base import Illustration, Losses, Moment, Objective
from vitrail.training.objectives.pixels import Pixels, pixels_as_pictures

SHOWN_HEADS = 6
"""How many attention heads the illustration shows."""


class ProjectionHead(nn.Module):
    """Maps features to outputs: three layers, normalisation to length 1, and the cosine with a learned direction for
    each output."""

    def __init__(self, width: int, config: DinoConfig):
        super().__init__()
        hidden, bottleneck = config.hidden_dim, config.bottleneck_dim
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        for module in self.mlp:
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        self.last = nn.Parameter(torch.empty(config.out_dim, bottleneck))
        nn.init.trunc_normal_(self.last, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Maps features (batch, width) to outputs (batch, out_dim) from -1 to 1."""
        # The directions of the last layer have length 1, so no output can dominate by growing.
        return F.linear(F.normalize(self.mlp(x), dim=-1), F.normalize(self.last, dim=-1))


class SelfDistillation(Objective):
    """The teacher, both projection heads, the centre, and the cross-entropy between student and teacher."""

    centre: Tensor

    def __init__(self, config: DinoConfig, model: ViT, pixels: Pixels):
        super().__init__()
        self.config, self.pixels = config, pixels
        self.head = ProjectionHead(model.config.width, config)
        self.teacher = copy.deepcopy(model).requires_grad_(False).eval()
        self.teacher_head = copy.deepcopy(self.head).requires_grad_(False)
        self.register_buffer("centre", torch.zeros(config.out_dim))
        self.moment = Moment(0, 1, 0.0)
        self._outputs: list[Tensor] = []
        """For each part of this step, the sum of the teacher's outputs, with their number appended."""

    @classmethod
    def create(cls, config: TrainConfig, model: ViT, settings: LossSettings) -> Self:
        return cls(config.dino, model, Pixels(config.preprocessing))

    @classmethod
    def views(cls, config: TrainConfig) -> list[tuple[TransformConfig, Preprocessing]]:
        """Returns a second large crop, and the small ones."""
        small = replace(config.transform, crop="inception", area=config.dino.local_area)
        size = replace(config.preprocessing, image_size=config.local_size)
        return [(config.transform, config.preprocessing), *[(small, size)] * config.dino.local_crops]

    def train(self, mode: bool = True) -> "SelfDistillation":
        """Sets training or evaluation mode; the teacher always stays in evaluation mode."""
        super().train(mode)
        self.teacher.eval()  # without dropout
        return self

    def forward(self, model: ViT, batch: Batch) -> Losses:
        """Computes the mean cross-entropy between the teacher's and the student's distributions, over all pairs of
        different crops. Other measures: divergence, and entropy and usage of the outputs as shares of their largest
        value."""
        large, small = [batch.images, *batch.views[:1]], batch.views[1:]
        count = len(batch)
        with torch.no_grad():
            outputs = self.teacher_head(self.teacher.features(torch.cat(large))).float()
            if self.training:
                self._outputs.append(torch.cat([outputs.sum(dim=0), outputs.new_tensor([len(outputs)])]))
            logits = ((outputs - self.centre) / self.temperature).split(count)
            teacher, logs = [each.softmax(dim=-1) for each in logits], [each.log_softmax(dim=-1) for each in logits]
        student = self._student(model, large) + self._student(model, small)
        pairs = [(t, s) for t in range(len(teacher)) for s in range(len(student)) if t != s or len(student) == 1]
        loss = torch.stack([-(teacher[t] * student[s]).sum(dim=-1).mean() for t, s in pairs]).mean()
        entropies = [-(each * log).sum(dim=-1).mean() for each, log in zip(teacher, logs, strict=True)]
        entropy = torch.stack([entropies[t] for t, _ in pairs]).mean()
        mean = torch.cat(teacher).mean(dim=0)
        usage = -(mean * mean.clamp_min(1e-30).log()).sum()
        most = math.log(self.config.out_dim)
        measures = {"divergence": (loss - entropy), "entropy": entropy / most, "usage": usage / most}
        return Losses(loss, count, {name: value.item() * count for name, value in measures.items()})

    def _student(self, model: ViT, views: list[Tensor]) -> list[Tensor]:
        """Computes the logarithms of the student's probabilities, (batch, outputs) for each view. All views must have
        one size."""
        if not views:
            return []
        outputs = self.head(model.features(torch.cat(views))).float()
        return list((outputs / self.config.student_temperature).log_softmax(dim=-1).split(len(views[0])))

    @property
    def temperature(self) -> float:
        """Returns the teacher's temperature at this moment."""
        config = self.config
        if self.moment.epoch >= config.warmup_epochs:
            return config.teacher_temperature
        share = self.moment.epoch / config.warmup_epochs
        return config.warmup_temperature + share * (config.teacher_temperature - config.warmup_temperature)

    @property
    def momentum(self) -> float:
        """Returns the teacher's momentum at this moment; it rises to 1 along a cosine."""
        fall = (1 + math.cos(math.pi * self.moment.step / self.moment.total)) / 2
        return 1 - (1 - self.config.momentum) * fall

    def begin(self, moment: Moment) -> None:
        self.moment = moment

    def before_update(self) -> None:
        if self.moment.epoch < self.config.freeze_last_epochs:
            self.head.last.grad = None

    @torch.no_grad()
    def after_update(self, model: ViT) -> None:
        total = self.processes.sum_tensor(torch.stack(self._outputs).sum(dim=0))
        self._outputs.clear()
        self.centre.lerp_(total[:-1] / total[-1], 1 - self.config.centre_momentum)
        for teacher, student in ((self.teacher, model), (self.teacher_head, self.head)):
            theirs, ours = (tuple(module.parameters()) for module in (teacher, student))
            torch._foreach_lerp_(theirs, ours, 1 - self.momentum)  # pyright: ignore[reportPrivateImportUsage]

    def encoder(self, model: ViT) -> ViT:
        """Returns the teacher: the average is better than the student."""
        return self.teacher

    def score(self, result: dict[str, Any]) -> float | None:
        # Not the loss: it is lowest if the model has collapsed to the same output for every picture.
        return result.get("knn_top1")

    @torch.no_grad()
    def illustrate(self, model: ViT, batch: Batch) -> Illustration | None:
        """Draws where the heads of the last layer look, from the class token, or averaged over all patches if there is
        none."""
        teacher, images = self.teacher, batch.images
        if teacher.config.attention == "axial":
            return None
        last = teacher.config.depth - 1
        record = Recorder("attention", layers=[last])
        grid = teacher.grid_of(images)
        teacher.encode(teacher.embed(images), grid, record)
        weights, prefix = record.attention[last], teacher.config.prefix_tokens
        rows = weights[:, :, 0] if teacher.config.class_token else weights[:, :, prefix:].mean(dim=2)
        maps = rows[..., prefix:].float()  # (batch, heads, patches)
        maps = (maps / maps.amax(dim=-1, keepdim=True).clamp_min(1e-12)).unflatten(-1, grid)[:, :SHOWN_HEADS]
        shown = pixels_as_pictures(self.pixels(images))
        heads = maps.shape[1]
        source = "the class token" if teacher.config.class_token else "all patches, on average,"
        return Illustration(
            "attention",
            "Where the last layer looks",
            f"What {source} attend to in the teacher's last layer, head by head; each map's brightest is its own.",
            ["picture", *(f"head {head + 1}" for head in range(heads))],
            [[picture, *each] for picture, each in zip(shown, maps.cpu().numpy(), strict=True)],
        )
