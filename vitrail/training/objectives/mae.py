"""Masked autoencoder (He and others, 2022): three of four patches are left out, and their pixels predicted.

The encoder sees only the visible patches, so pre-training is cheap. A small decoder gets them back at their positions,
with a learned token at every other position. Tensors have the published names, so published decoders load too.
"""

from typing import Self

import torch
from torch import Tensor, nn

from vitrail.config import MaeConfig, ModelConfig, Preprocessing, TrainConfig
from vitrail.data.loader import Batch
from vitrail.models.positions import sincos
from vitrail.models.vit import Block, ViT, patchify
from vitrail.tasks.base import LossSettings
from vitrail.training.objectives.base import Illustration, Losses, Objective
from vitrail.training.objectives.pixels import HIDDEN_GREY, Pixels, mask_at, pixels_as_pictures, unpatchify

EPS = 1e-6
"""Added to the variance of a patch's pixels."""


class MaskedAutoencoder(Objective):
    """The decoder of a masked autoencoder, and the squared error of the pixels of the masked patches."""

    decoder_pos_embed: Tensor

    def __init__(self, config: MaeConfig, model: ModelConfig, preprocessing: Preprocessing):
        super().__init__()
        self.config, self.patch_size, self.channels = config, model.patch_size, model.channels
        self.prefix = model.prefix_tokens
        self.pixels = Pixels(preprocessing)
        width = config.decoder_width
        decoder = ModelConfig(
            image_size=model.image_size,
            channels=model.channels,
            patch_size=model.patch_size,
            width=width,
            depth=config.decoder_depth,
            num_heads=config.decoder_heads,
            mlp_dim=4 * width,
            norm_eps=model.norm_eps,
            qkv_bias=model.qkv_bias,
        )
        self.decoder_embed = nn.Linear(model.width, width)
        self.mask_token = nn.Parameter(torch.empty(1, 1, width).normal_(std=0.02))
        # Fixed positions, zeros for the tokens before the patches; a buffer because published files have them.
        positions = nn.functional.pad(sincos(model.grid, width), (0, 0, self.prefix, 0))
        self.register_buffer("decoder_pos_embed", positions[None])
        self.decoder_blocks = nn.ModuleList(Block(decoder, 0.0) for _ in range(config.decoder_depth))
        self.decoder_norm = nn.LayerNorm(width, model.norm_eps)
        self.decoder_pred = nn.Linear(width, model.channels * model.patch_size**2)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    @classmethod
    def create(cls, config: TrainConfig, model: ViT, settings: LossSettings) -> Self:
        return cls(config.mae, model.config, config.preprocessing)

    @classmethod
    def unseen(cls, config: TrainConfig) -> float:
        return config.mae.fraction

    def forward(self, model: ViT, batch: Batch, noise: Tensor | None = None) -> Losses:
        """Computes the loss of a batch. noise: (batch, patches), the patches with the lowest stay visible; None: drawn
        at random."""
        predicted, visible = self._predict(model, batch.images, noise)
        wanted, _, _ = self._wanted(batch.images)
        error = (predicted - wanted).square().mean(dim=-1)  # (batch, patches)
        masked = ~mask_at(visible, error.shape[1])
        return Losses((error * masked).sum() / masked.sum(), len(batch))

    def _predict(self, model: ViT, images: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the predicted pixels of every patch (batch, patches, P * P * channels), and the indices of the
        visible patches."""
        grid = model.grid_of(images)
        count = grid[0] * grid[1]
        if noise is None:
            noise = torch.rand(len(images), count, device=images.device)
        visible = noise.argsort(dim=1)[:, : max(1, int(count * (1 - self.config.fraction)))]
        tokens = model.encode(model.place(model.patch_embed(images), grid, visible), grid)
        x = self.decoder_embed(tokens)
        before, seen = x[:, : self.prefix], x[:, self.prefix :]
        patches = self.mask_token.to(x.dtype).repeat(len(x), count, 1)
        patches = patches.scatter(1, visible[..., None].expand_as(seen), seen)
        x = torch.cat([before, patches], dim=1) + self.decoder_pos_embed
        for block in self.decoder_blocks:
            x = block(x, grid)
        return self.decoder_pred(self.decoder_norm(x))[:, self.prefix :].float(), visible

    def _wanted(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the pixels that the decoder should predict, and the mean and deviation of each patch that were taken
        out of them.

        The channels of a pixel stand together here (P * P * channels), as in published decoders.
        """
        pixels = patchify(images, self.patch_size).float()
        pixels = pixels.unflatten(-1, (self.channels, -1)).transpose(-1, -2).flatten(-2)
        if not self.config.normalise:
            return pixels, pixels.new_zeros(1), pixels.new_ones(1)
        mean, deviation = pixels.mean(dim=-1, keepdim=True), (pixels.var(dim=-1, keepdim=True) + EPS).sqrt()
        return (pixels - mean) / deviation, mean, deviation

    @torch.no_grad()
    def illustrate(self, model: ViT, batch: Batch) -> Illustration:
        images, size = batch.images, self.patch_size
        grid = model.grid_of(images)
        predicted, visible = self._predict(model, images, None)
        _, mean, deviation = self._wanted(images)
        values = predicted * deviation + mean
        values = values.unflatten(-1, (-1, self.channels)).transpose(-1, -2).flatten(-2)
        painted = patchify(self.pixels(unpatchify(values, grid, size)), size)
        whole = patchify(self.pixels(images), size)
        seen = mask_at(visible, whole.shape[1])[..., None]
        shown = [whole, torch.where(seen, whole, HIDDEN_GREY), torch.where(seen, whole, painted)]
        pictures = [pixels_as_pictures(unpatchify(each, grid, size)) for each in shown]
        about = f"{1 - visible.shape[1] / whole.shape[1]:.0%} of the patches were left out; the decoder paints them."
        if self.config.normalise:
            about += " It says how pixels differ within a patch, so each patch's own mean and contrast are put back."
        return Illustration(
            "reconstruction",
            "What the decoder makes of what it does not see",
            about,
            ["original", "what the encoder sees", "reconstruction"],
            list(zip(*pictures, strict=True)),
        )
