"""A head of learned queries, each of which becomes a class and a mask (EoMT: Kerssies and others, 2025).

    z  = [z; Q]                                    before the last layers: Q are learned tokens
    c  = Linear(LN(zL)[queries])                   a class for each query, or "no object"
    m  = MLP(LN(zL)[queries]) . Up(LN(zL)[patches])   its mask: a dot product in each cell of an enlarged grid

The encoder itself lets queries and patches attend to each other; there is no decoder. In training a query attends, at
first, only to the patches of the mask that it has before the layer. The share of the queries that are masked so falls
to 0 during training, so that nothing is masked afterwards.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import ModelConfig
from vitrail.models.positions import Grid
from vitrail.tasks.queries import Predictions


class ChannelNorm(nn.LayerNorm):
    """Normalises the channels of each cell: (batch, channels, rows, columns) -> the same shape."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Computes the LayerNorm over the channels of `input`."""
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


class UpscaleBlock(nn.Module):
    """Doubles rows and columns: transposed convolution, GELU, depthwise convolution, LayerNorm."""

    def __init__(self, width: int, norm_eps: float):
        super().__init__()
        self.up = nn.ConvTranspose2d(width, width, 2, 2)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False)
        self.norm = ChannelNorm(width, norm_eps)

    def forward(self, cells: Tensor) -> Tensor:
        """Maps (batch, width, rows, columns) to (batch, width, 2 rows, 2 columns)."""
        return self.norm(self.depthwise(F.gelu(self.up(cells))))


class QueryHead(nn.Module):
    """Turns the tokens of patches and queries into a class and a mask for each query."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width = config.width
        self.queries = nn.Parameter(torch.zeros(1, config.queries, width))
        self.classes = nn.Linear(width, config.num_classes + 1)
        self.mask_mlp = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )
        # 1e-6 whatever the encoder's is, as in EoMT's own code.
        self.upscale = nn.Sequential(*(UpscaleBlock(width, 1e-6) for _ in range(config.upscale_blocks)))

    def forward(self, patches: Tensor, queries: Tensor, grid: Grid) -> Predictions:
        """Computes class and mask logits.

        Args:
            patches: (batch, patches, width), after the final norm.
            queries: (batch, queries, width), likewise.
            grid: rows and columns of the patches.
        """
        cells = self.upscale(patches.transpose(1, 2).unflatten(2, grid))  # (batch, width, rows, columns)
        masks = self.mask_mlp(queries) @ cells.flatten(2)
        return self.classes(queries), masks.unflatten(2, cells.shape[2:])

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialises the weights as EoMT does: queries N(0, 1), Linear and convolutions by PyTorch's own rule."""
        nn.init.normal_(self.queries)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d | ChannelNorm):
                module.reset_parameters()


class QueryMasking:
    """Keeps what queries predict before each layer, and lets them attend to the patches of their own masks only.

    A query whose mask is empty still attends to the other tokens.
    """

    def __init__(self, probabilities: Sequence[float], predict: Callable[[Tensor], Predictions]):
        """Prepares for one pass through the encoder.

        Args:
            probabilities: for each layer with queries, the probability that a query is masked.
            predict: computes class and mask logits from the tokens before a layer.
        """
        self.probabilities, self.predict = probabilities, predict
        self.predictions: list[Predictions] = []

    def bias(self, tokens: Tensor, first: int, grid: Grid) -> Tensor | None:
        """Predicts from the tokens before a layer, and returns what is added to its attention scores.

        Args:
            tokens: (batch, tokens, width): the prefix, the patches, the queries.
            first: the place of the first patch.
            grid: rows and columns of the patches.

        Returns:
            (batch, 1, tokens, tokens), minus infinity where a query may not attend; None if nothing is masked.
        """
        probability = self.probabilities[len(self.predictions)]
        self.predictions.append(self.predict(tokens))
        if probability <= 0:
            return None
        with torch.no_grad():
            masks = self.predictions[-1][1].float()
            hidden = F.interpolate(masks, size=grid, mode="bilinear", align_corners=False).flatten(2) <= 0
            if probability < 1:
                masked = torch.rand(hidden.shape[:2], device=hidden.device) <= probability
                hidden = hidden & masked[..., None]
            bias = tokens.new_zeros(len(tokens), 1, tokens.shape[1], tokens.shape[1])
            queries = tokens.shape[1] - hidden.shape[1]
            bias[:, 0, queries:, first : first + hidden.shape[2]].masked_fill_(hidden, -torch.inf)
            return bias
