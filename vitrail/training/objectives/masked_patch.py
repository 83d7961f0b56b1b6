"""Masked patch prediction (Appendix B.1.2): half of the patch embeddings are corrupted, and the colours of these
patches predicted.

Embeddings are corrupted before positions are added, so the model knows where each patch is, but not what it shows.
"""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import MaskedPatchConfig, ModelConfig, Preprocessing, TrainConfig
from vitrail.data.loader import Batch
from vitrail.models.vit import ViT, patchify
from vitrail.tasks.base import LossSettings
from vitrail.training.objectives.base import Illustration, Losses, Objective
from vitrail.training.objectives.pixels import HIDDEN_GREY, Pixels, mask_at, pixels_as_pictures, unpatchify

LEVELS = 8
"""Levels of a channel in 3 bits."""
_SIDE = 4
"""Rows and columns of a patch that is reduced in size, if the target is "small"."""
PREDICTIONS = {"mean": 1, "small": _SIDE * _SIDE}
"""How many colours are predicted for each patch."""


@dataclass(frozen=True)
class Corruption:
    """The patches that are corrupted, and what each is replaced by; each field is (batch, corrupted)."""

    chosen: Tensor
    """Indices of the corrupted patches in the grid."""
    masked: Tensor
    """Whether the embedding is replaced by the mask embedding."""
    replaced: Tensor
    """Whether it is replaced by that of another patch. If neither, it stays as it is."""
    others: Tensor
    """Index of that other patch."""


def draw_corruption(noise: Tensor, config: MaskedPatchConfig) -> Corruption:
    """Chooses which patches are corrupted and how. noise: (batch, patches, 3), uniform from 0 to 1; its three numbers
    decide whether a patch is chosen, what replaces it, and which other patch that is."""
    patches = noise.shape[1]
    count = max(1, round(config.fraction * patches))
    chosen = noise[..., 0].argsort(dim=1)[:, :count]
    fate, other = noise[..., 1].gather(1, chosen), noise[..., 2].gather(1, chosen)
    masked = fate < config.masked
    # The other patch is 1 to patches - 1 places further, around the grid: any but the patch itself, with equal chance.
    step = 1 + (other * (patches - 1)).long().clamp(max=max(patches - 2, 0))
    return Corruption(chosen, masked, (fate < config.masked + config.replaced) & ~masked, (chosen + step) % patches)


def corrupt(patches: Tensor, corruption: Corruption, mask: Tensor) -> Tensor:
    """Corrupts patch embeddings (batch, patches, width). mask: the mask embedding."""

    def at(places: Tensor) -> Tensor:
        return patches.gather(1, places[..., None].expand(-1, -1, patches.shape[2]))

    new = torch.where(corruption.replaced[..., None], at(corruption.others), at(corruption.chosen))
    new = torch.where(corruption.masked[..., None], mask.to(new.dtype), new)
    return patches.scatter(1, corruption.chosen[..., None].expand_as(new), new)


class MaskedPatch(Objective):
    """Predicts the colours of the corrupted patches as classes, or their pixels by squared error."""

    def __init__(self, config: MaskedPatchConfig, model: ModelConfig, preprocessing: Preprocessing):
        super().__init__()
        self.config, self.patch_size, self.channels = config, model.patch_size, model.channels
        self.prefix = model.prefix_tokens
        self.pixels = Pixels(preprocessing)
        self.mask_token = nn.Parameter(torch.empty(1, 1, model.width).normal_(std=0.02))
        outputs = model.channels * model.patch_size**2
        if config.target != "pixels":
            outputs = PREDICTIONS[config.target] * LEVELS**model.channels
        self.head = nn.Linear(model.width, outputs)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def create(cls, config: TrainConfig, model: ViT, settings: LossSettings) -> Self:
        return cls(config.masked_patch, model.config, config.preprocessing)

    def forward(self, model: ViT, batch: Batch, noise: Tensor | None = None) -> Losses:
        """Computes the loss of a batch. noise: (batch, patches, 3), decides what is corrupted; None: drawn at
        random."""
        output, corruption = self._predict(model, batch.images, noise)
        places = corruption.chosen
        if self.config.target == "pixels":
            wanted = patchify(batch.images, self.patch_size).float()
            wanted = wanted.gather(1, places[..., None].expand(-1, -1, wanted.shape[2]))
            return Losses(F.mse_loss(output, wanted), len(batch))
        wanted = self.classes(batch.images)
        wanted = wanted.gather(1, places[..., None].expand(-1, -1, wanted.shape[2]))  # (batch, corrupted, predictions)
        loss = F.cross_entropy(output.flatten(0, 2), wanted.flatten())
        with torch.no_grad():
            right = (output.argmax(dim=-1) == wanted).float().mean().item()
        return Losses(loss, len(batch), {"accuracy": right * len(batch)})

    def _predict(self, model: ViT, images: Tensor, noise: Tensor | None) -> tuple[Tensor, Corruption]:
        """Returns what is predicted of the corrupted patches, (batch, corrupted, values) for pixels or (batch,
        corrupted, predictions, classes), and which these are."""
        grid = model.grid_of(images)
        if noise is None:
            noise = torch.rand(len(images), grid[0] * grid[1], 3, device=images.device)
        corruption = draw_corruption(noise, self.config)
        patches = corrupt(model.patch_embed(images), corruption, self.mask_token)
        tokens = model.encode(model.place(patches, grid), grid)[:, self.prefix :]
        seen = tokens.gather(1, corruption.chosen[..., None].expand(-1, -1, tokens.shape[2]))
        output = self.head(seen).float()
        if self.config.target != "pixels":
            output = output.unflatten(-1, (PREDICTIONS[self.config.target], -1))
        return output, corruption

    def classes(self, images: Tensor) -> Tensor:
        """Computes the colour classes of each patch, int64 (batch, patches, predictions). A class is a number of 3 bits
        a channel, those of the first channel the lowest."""
        pixels = patchify(self.pixels(images), self.patch_size)  # (batch, patches, channels * P * P)
        shaped = pixels.unflatten(-1, (self.channels, self.patch_size, self.patch_size))
        side = 1 if self.config.target == "mean" else _SIDE
        means = F.adaptive_avg_pool2d(shaped.flatten(0, 1), side).unflatten(0, shaped.shape[:2]).flatten(-2)
        # The three high bits of a byte are its value / 32, rounded down. Normalising and undoing it has rounding
        # errors, which must not move a value on a border to the level below.
        levels = ((means * 255 + 1e-3) / 32).long().clamp(0, LEVELS - 1)  # (batch, patches, channels, predictions)
        weights = LEVELS ** torch.arange(self.channels, device=images.device)
        return (levels * weights[:, None]).sum(dim=2)

    def colours(self, classes: Tensor) -> Tensor:
        """Turns classes (..., predictions) into colours from 0 to 1 (..., channels, predictions)."""
        levels = torch.stack([classes // LEVELS**channel % LEVELS for channel in range(self.channels)], dim=-2)
        return levels / (LEVELS - 1)

    @torch.no_grad()
    def illustrate(self, model: ViT, batch: Batch) -> Illustration:
        images, size = batch.images, self.patch_size
        grid = model.grid_of(images)
        output, corruption = self._predict(model, images, None)
        hidden = mask_at(corruption.chosen, grid[0] * grid[1])[..., None]
        whole = patchify(self.pixels(images), size)
        if self.config.target == "pixels":
            output = patchify(self.pixels(unpatchify(self._everywhere(output, corruption, whole), grid, size)), size)
            columns = ["original", "corrupted", "predicted"]
            answers = [output]
        else:
            columns = ["original", "corrupted", "wanted", "predicted"]
            predicted = self._everywhere(output.argmax(dim=-1), corruption, self.classes(images))
            answers = [self._painted(self.classes(images)), self._painted(predicted)]
        shown = [
            whole,
            torch.where(hidden, HIDDEN_GREY, whole),
            *(torch.where(hidden, each, whole) for each in answers),
        ]
        pictures = [pixels_as_pictures(unpatchify(each, grid, size)) for each in shown]
        kept = 1 - self.config.masked - self.config.replaced
        bits = "" if self.config.target == "pixels" else " Colours are told at three bits a channel."
        return Illustration(
            "reconstruction",
            "What the model says of hidden patches",
            f"{self.config.fraction:.0%} of the patches were corrupted before the encoder and are grey here, though "
            f"{self.config.replaced:.0%} of those became another patch and {kept:.0%} stayed as they were.{bits}",
            columns,
            list(zip(*pictures, strict=True)),
        )

    def _everywhere(self, values: Tensor, corruption: Corruption, elsewhere: Tensor) -> Tensor:
        """Puts values of the corrupted patches (batch, corrupted, n) among those of all patches, `elsewhere` (batch,
        patches, n)."""
        return elsewhere.scatter(1, corruption.chosen[..., None].expand_as(values), values.to(elsewhere.dtype))

    def _painted(self, classes: Tensor) -> Tensor:
        """Turns classes (batch, patches, predictions) into pixels (batch, patches, channels * P * P) of their
        colours."""
        side = 1 if self.config.target == "mean" else _SIDE
        colours = self.colours(classes).unflatten(-1, (side, side))
        size = (self.patch_size, self.patch_size)
        grown = F.interpolate(colours.flatten(0, 1), size, mode="nearest-exact")
        return grown.unflatten(0, classes.shape[:2]).flatten(2)
