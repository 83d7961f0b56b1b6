"""Computes attention rollout (Figures 6 and 14): which patches the answer came from, over all layers together.

In each layer the heads are averaged, the identity is added for the residual connection, and every ROW is scaled to sum
to 1. The layers are multiplied, the last one leftmost. Row i of the product says how much of each input patch is mixed
into token i. Gradient rollout counts, of each head's attention, only what raises the score of a class.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from vitrail.insight.attention import batch_size, evaluating, full_attention, patch_grid, read_by_head, record, to_model
from vitrail.insight.explained_score import ExplainedScore
from vitrail.insight.images import Images
from vitrail.models.attention import Recorder
from vitrail.models.vit import ViT


class Product:
    """The product of the layers so far, [batch, tokens, tokens]."""

    def __init__(self) -> None:
        self.matrix: Tensor | None = None

    def add(self, step: int, attention: Tensor) -> None:
        """Multiplies by a step's attention [batch, heads, tokens, tokens], averaged over heads."""
        self.multiply(attention.float().mean(dim=1))

    def multiply(self, mixed: Tensor) -> None:
        """Multiplies by a matrix [batch, tokens, tokens] with the residual connection added."""
        with_residual = mixed + torch.eye(mixed.shape[-1], device=mixed.device)
        with_residual = with_residual / with_residual.sum(dim=-1, keepdim=True)
        self.matrix = with_residual if self.matrix is None else with_residual @ self.matrix


def rollout_matrices(model: ViT, images: Images) -> Iterator[Tensor]:
    """Yields the rollout of each batch, [batch, tokens, tokens]; every row sums to 1."""
    for batch in images.batches(batch_size(model.config, patch_grid(model, images))):
        product = Product()
        record(model, batch, product.add)
        assert product.matrix is not None
        yield product.matrix


def rollout(model: ViT, images: Images) -> np.ndarray:
    """Computes how much of each patch is in what the classifier reads, [images, rows, columns]."""
    grid = patch_grid(model, images)
    maps = [read_by_head(matrix, model.config, grid).cpu().numpy() for matrix in rollout_matrices(model, images)]
    return np.concatenate(maps)


def gradient_rollout(model: ViT, image: Tensor, question: ExplainedScore) -> np.ndarray:
    """Computes rollout for one image [channels, rows, columns] and one class of it, [rows, columns].

    Each head's attention is multiplied by the gradient of the class's score and what lowers the score is set to 0. Then
    the heads are averaged and the layers multiplied as in plain rollout.
    """
    with evaluating(model), torch.inference_mode(False), torch.enable_grad():
        images = to_model(model, image[None].clone())
        grid = model.grid_of(images)
        recorder = Recorder("attention")
        # Gradients are tracked from the tokens on, whether or not the weights require them.
        tokens = model.embed(images).detach().requires_grad_()
        score = question.score(model, model.encode(tokens, grid, recorder)).sum()
        steps = sorted(recorder.attention)
        gradients = torch.autograd.grad(score, [recorder.attention[step] for step in steps])
    product = Product()
    for step, gradient in zip(steps, gradients, strict=True):
        raising = (gradient * recorder.attention.pop(step).detach()).relu()
        product.add(step, full_attention(raising, model.config, grid, step))
    assert product.matrix is not None
    if question.patches is not None:  # the score is that of these patches, so their rows are what the head reads for it
        first = model.config.prefix_tokens
        rows = product.matrix[0, first + question.patches.to(product.matrix.device), first:]
        return rows.mean(dim=0).unflatten(0, grid).cpu().numpy()
    return read_by_head(product.matrix, model.config, grid)[0].cpu().numpy()
