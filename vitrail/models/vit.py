"""The Vision Transformer, in the order of the paper.

    z0 = [class; x1 E; ...; xN E] + Epos           embed
    z' = MSA(LN(z)) + z                            encode: depth times
    z  = MLP(LN(z')) + z'
    y  = LN(zL)[class]                             pool
    logits = y W                                   head

MSA is in `attention.py`, Epos in `positions.py`, a head of queries in `query_head.py`. Tensors have the names that
timm, DeiT, MAE, DINO and DINOv2 share, so their weights load without renaming.
"""

from collections.abc import Sequence
from operator import attrgetter

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.models.attention import Attention, Recorder
from vitrail.models.card import Card
from vitrail.models.positions import Grid, position_embedding
from vitrail.models.prediction import Predicts
from vitrail.models.query_head import QueryHead, QueryMasking
from vitrail.models.resnet import stem
from vitrail.tasks.queries import Predictions, dense_scores


class PatchEmbedding(nn.Module):
    """Turns images into one token for each patch: x E in the paper. A convolution of stride P and a Linear on flattened
    patches compute the same."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.backbone = None if config.stages is None else stem(config)
        self.by_convolution = config.patch_embedding == "convolution"
        self.patch_size = config.patch_size
        self.proj = nn.Conv2d(config.stem_outputs, config.width, config.patch_size, config.patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """Maps images (batch, channels, rows, columns) to tokens (batch, patches, width)."""
        x = images if self.backbone is None else self.backbone(images)
        if self.by_convolution:
            return self.proj(x).flatten(2).transpose(1, 2)  # (batch, patches, width)
        return F.linear(patchify(x, self.patch_size), self.proj.weight.flatten(1), self.proj.bias)


def patchify(images: Tensor, patch_size: int) -> Tensor:
    """Cuts images (batch, channels, rows, columns) into flattened patches (batch, patches, channels * P * P), in raster
    order."""
    batch, channels, rows, columns = images.shape
    cut = images.reshape(batch, channels, rows // patch_size, patch_size, columns // patch_size, patch_size)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * patch_size**2)


class Mlp(nn.Module):
    """Linear, GELU, Linear. With SwiGLU, half of the hidden units gate the other half."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.activation = config.activation
        inner = config.mlp_dim // 2 if config.activation == "swiglu" else config.mlp_dim
        self.fc1 = nn.Linear(config.width, config.mlp_dim)
        self.fc2 = nn.Linear(inner, config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Computes each token by itself: (batch, tokens, width) -> (batch, tokens, width)."""
        x = self.fc1(x)
        if self.activation == "swiglu":
            gate, value = x.chunk(2, dim=-1)
            x = F.silu(gate) * value
        else:
            x = F.gelu(x, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        return self.drop(self.fc2(self.drop(x)))


class LayerScale(nn.Module):
    """Multiplies each channel by a learned factor that begins small."""

    def __init__(self, width: int, value: float):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), float(value)))

    def forward(self, x: Tensor) -> Tensor:
        """Scales tokens (batch, tokens, width)."""
        return x * self.gamma


class DropPath(nn.Module):
    """Drops the residual branch of a sample with probability p, and multiplies those that remain by 1 / (1 - p). In an
    axial block each row or column counts as a sample."""

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """Drops branches (batch, tokens, width) in training; returns them unchanged otherwise."""
        if not self.training or self.probability == 0:
            return x
        keep = 1 - self.probability
        return x * (x.new_empty(x.shape[0], 1, 1).bernoulli_(keep) / keep)


class Block(nn.Module):
    """One layer of the encoder: attention, then MLP, each with a norm before it and its input added to its output."""

    def __init__(self, config: ModelConfig, drop_path: float):
        super().__init__()
        width, scale = config.width, config.layer_scale
        self.norm1 = nn.LayerNorm(width, config.norm_eps)
        self.attn = Attention(config)
        self.ls1 = nn.Identity() if scale is None else LayerScale(width, scale)
        self.norm2 = nn.LayerNorm(width, config.norm_eps)
        self.mlp = Mlp(config)
        self.ls2 = nn.Identity() if scale is None else LayerScale(width, scale)
        self.drop_path = DropPath(drop_path)

    def forward(
        self,
        x: Tensor,
        grid: Grid,
        record: Recorder | None = None,
        layer: int = 0,
        first: int | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Computes every token, or only the first `first`; those still attend to all.

        Args:
            x: (batch, tokens, width).
            grid: rows and columns of the patches among the tokens.
            record: keeps attention weights, if it wants them.
            layer: the number under which they are kept.
            first: how many tokens to compute; None for all.
            bias: added to the attention scores; None for nothing.
        """
        x = x[:, :first] + self.drop_path(self.ls1(self.attn(self.norm1(x), grid, record, layer, first, bias)))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


class AxialBlock(nn.Module):
    """Axial attention (Appendix D.6): attention along the rows and MLP, then attention along the columns and MLP."""

    def __init__(self, config: ModelConfig, drop_path: float):
        super().__init__()
        self.row = Block(config, drop_path)
        self.column = Block(config, drop_path)

    def forward(self, x: Tensor, grid: Grid, record: Recorder | None = None, layer: int = 0) -> Tensor:
        """Computes tokens (batch, rows * columns, width); arguments as for `Block.forward`."""
        batch = x.shape[0]
        x = self.row(x.unflatten(1, grid).flatten(0, 1), grid, record, 2 * layer)  # (batch * rows, columns, width)
        x = x.unflatten(0, (batch, grid[0])).transpose(1, 2)  # (batch, columns, rows, width)
        x = self.column(x.flatten(0, 1), grid, record, 2 * layer + 1)
        return x.unflatten(0, (batch, grid[1])).transpose(1, 2).flatten(1, 2)


class ViT(Predicts, nn.Module):
    """A Vision Transformer. Its steps are public: `embed`, `encode`, `pool`, `classify`; `forward` joins them.

    config: all that decides what it computes, besides its weights.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.card = Card()
        width, depth = config.width, config.depth
        self.patch_embed = PatchEmbedding(config)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width)) if config.class_token else None
        self.dist_token = nn.Parameter(torch.zeros(1, 1, width)) if config.distillation_token else None
        self.reg_token = nn.Parameter(torch.zeros(1, config.registers, width)) if config.registers else None
        self._keep_positions(position_embedding(config).make(config))
        self.pos_drop = nn.Dropout(config.dropout)
        block = AxialBlock if config.attention == "axial" else Block
        rates = torch.linspace(0, config.drop_path, depth, device="cpu").tolist()
        self.blocks = nn.ModuleList(block(config, rate) for rate in rates)
        after = config.norm_after_pooling
        self.norm = nn.Identity() if after else nn.LayerNorm(width, config.norm_eps)
        self.fc_norm = nn.LayerNorm(width, config.norm_eps) if after else nn.Identity()
        features = config.representation_size or width
        self.pre_logits = PreLogits(width, features) if config.representation_size else nn.Identity()
        linear = nn.Linear(features, config.num_classes) if config.num_classes else nn.Identity()
        self.head = QueryHead(config) if config.query_tokens else linear
        distilled = config.distillation_token and config.num_classes and config.pooling == "class"
        self.head_dist = nn.Linear(features, config.num_classes) if distilled else None

    def forward(self, images: Tensor) -> Tensor:
        """Computes logits (batch, classes) for images (batch, channels, rows, columns); a head that reads every patch
        gives them on the grid, (batch, classes, grid rows, grid columns), and one of queries on a finer grid."""
        grid = self.grid_of(images)
        tokens = self.encode(self.embed(images), grid, first=self.read_tokens)
        if self.config.query_tokens:
            return dense_scores(self.ask(tokens, grid))
        logits = self.classify(self.pool(tokens), tokens)
        return logits.transpose(1, 2).unflatten(2, grid) if self.config.pooling == "patches" else logits

    def features(self, images: Tensor) -> Tensor:
        """Computes one vector for each of the images (batch, channels, rows, columns), (batch, width): what the head is
        given, or its mean over the patches. It has the representation size for a model with a pre-training head."""
        pooled = self.head_input(images)
        return pooled.mean(dim=1) if self.config.pooling == "patches" else pooled

    def head_input(self, images: Tensor) -> Tensor:
        """Computes what the head is given for images (batch, channels, rows, columns): (batch, width), or (batch,
        patches, width) if it reads every patch."""
        return self.pool(self.encode(self.embed(images), self.grid_of(images), first=self.read_tokens))

    def query_predictions(self, images: Tensor, masked: Sequence[float] | None = None) -> list[Predictions]:
        """Computes class and mask logits of a head of queries, the final ones last.

        Args:
            images: (batch, channels, rows, columns).
            masked: for training, the probability in each layer with queries that a query attends to the patches of its
                own mask only. What is predicted before each of these layers then comes first. None: no masks.
        """
        grid = self.grid_of(images)
        masking = None
        if masked is not None:
            masking = QueryMasking(masked, lambda tokens: self.ask(self.norm(tokens), grid))
        tokens = self.encode(self.embed(images), grid, masking=masking)
        return [*(masking.predictions if masking else ()), self.ask(tokens, grid)]

    def ask(self, tokens: Tensor, grid: Grid) -> Predictions:
        """Computes class and mask logits from the tokens that `encode` returned, on this grid of patches."""
        assert isinstance(self.head, QueryHead), "the model has no head of queries"
        return self.head(self.pool(tokens), self.fc_norm(tokens[:, -self.config.query_tokens :]), grid)

    @property
    def read_tokens(self) -> int | None:
        """The number of the last layer's tokens that the head reads; None if it needs all, or if gradients are
        computed.

        In inference the last layer is computed for these tokens only. The logits are the same, and three quarters of
        one layer are saved.
        """
        config = self.config
        if torch.is_grad_enabled() or config.pooling != "class":
            return None
        if config.attention == "axial" or config.position_kind.in_attention:
            return None
        return 1 if self.head_dist is None else 2

    def embed(self, images: Tensor) -> Tensor:
        """Turns images (batch, channels, rows, columns) into tokens (batch, prefix + patches, width) that have their
        positions."""
        grid = self.grid_of(images)
        return self.place(self.patch_embed(images), grid)

    def place(self, patches: Tensor, grid: Grid, keep: Tensor | None = None) -> Tensor:
        """Adds positions to patch embeddings, drops some of them if asked to, and puts the prefix tokens before them.

        Args:
            patches: (batch, patches, width).
            grid: rows and columns of the patches.
            keep: the patches that are kept, by index in the grid, int64 (batch, kept). None: all, except that in
                training patch dropout chooses at random.

        Returns:
            Tokens (batch, prefix + kept, width).
        """
        own_tokens = (self.cls_token, self.dist_token, self.reg_token)
        prefix: list[Tensor] = [token for token in own_tokens if token is not None]
        positions = self.positions(0, grid)
        if positions is not None:
            before, positions = positions[:, : -patches.shape[1]], positions[:, -patches.shape[1] :]
            patches = patches + positions
            if before.shape[1]:
                prefix = [torch.cat(prefix, dim=1) + before]
        if keep is None and self.training and self.config.patch_dropout:
            keep = self._random_subset(patches)
        if keep is not None:
            patches = patches.gather(1, keep[..., None].expand(-1, -1, patches.shape[2]))
        tokens = torch.cat([*(token.expand(patches.shape[0], -1, -1) for token in prefix), patches], dim=1)
        return self.pos_drop(tokens)

    def encode(
        self,
        tokens: Tensor,
        grid: Grid | None = None,
        record: Recorder | None = None,
        first: int | None = None,
        masking: QueryMasking | None = None,
    ) -> Tensor:
        """Applies the blocks and the final norm: (batch, tokens, width) -> the same shape, or with the queries behind
        the other tokens if the head has any.

        Args:
            tokens: what `embed` returned.
            grid: rows and columns of the patches; needed if it is not the configuration's.
            record: keeps attention weights and hidden states.
            first: how many tokens of the last layer to compute, which are then all that is returned; None for all.
            masking: masks the attention of queries; None: they attend to all tokens.
        """
        grid = grid or self.config.grid
        every_layer, bias = self.config.positions_at != "stem", None
        for layer, block in enumerate(self.blocks):
            if isinstance(self.head, QueryHead) and layer == self.config.first_query_layer:
                tokens = torch.cat([tokens, self.head.queries.expand(tokens.shape[0], -1, -1)], dim=1)
            if masking is not None and layer >= self.config.first_query_layer:
                bias = masking.bias(tokens, self.config.prefix_tokens, grid)
            if every_layer and layer and (positions := self.positions(layer, grid)) is not None:
                unplaced = tokens.shape[1] - positions.shape[1]  # prefix tokens that have no position
                tokens = tokens + F.pad(positions, (0, 0, unplaced, 0))
            if self.config.gradient_checkpointing and self.training and record is None:
                given = () if bias is None else (None, layer, None, bias)
                tokens = checkpoint(block, tokens, grid, *given, use_reentrant=False)  # pyright: ignore[reportAssignmentType]
            elif bias is not None:
                tokens = block(tokens, grid, record, layer, first, bias)
            else:
                last = first is not None and layer == len(self.blocks) - 1
                tokens = block(tokens, grid, record, layer, first) if last else block(tokens, grid, record, layer)
            if record is not None and record.wants("hidden", layer):
                record.keep("hidden", layer, tokens)
        return self.norm(tokens)

    def pool(self, tokens: Tensor) -> Tensor:
        """Returns what the head reads of the tokens that `encode` returned, after the tanh layer of the pre-training
        head if there is one: the class token or the average of the patch tokens, (batch, width), or all patch tokens,
        (batch, patches, width)."""
        if self.config.pooling == "class":
            pooled = tokens[:, 0]
        else:
            pooled = tokens[:, self.config.prefix_tokens : tokens.shape[1] - self.config.query_tokens]
            pooled = pooled if self.config.pooling == "patches" else pooled.mean(dim=1)
        return self.pre_logits(self.fc_norm(pooled))

    def classify(self, pooled: Tensor, tokens: Tensor) -> Tensor:
        """Computes logits (batch, classes).

        DeiT has a second classifier, which reads the distillation token: logits are then the mean of both.

        Args:
            pooled: What `pool` returned, (batch, width) or (batch, representation size).
            tokens: What `encode` returned, (batch, tokens, width).
        """
        logits = self.head(pooled)
        if self.head_dist is not None:
            logits = (logits + self.head_dist(self.pre_logits(tokens[:, 1]))) / 2
        return logits

    def grid_of(self, images: Tensor) -> Grid:
        """Returns rows and columns of patches of images (batch, channels, rows, columns); a UserError if their shape
        does not fit."""
        if images.ndim != 4 or images.shape[1] != self.config.channels:
            raise UserError(
                f"the model takes images of shape (batch, {self.config.channels}, rows, columns), "
                f"not {tuple(images.shape)}"
            )
        size = (images.shape[2], images.shape[3])
        return self.config.grid if size == self.config.rows_columns else self.config.grid_for(size)

    def positions(self, layer: int, grid: Grid) -> Tensor | None:
        """Returns the positions that are added before a layer, (1, tokens that have one, width), interpolated if `grid`
        is not the configuration's. None if nothing is added."""
        layer = layer if self.config.positions_at == "every_layer" else 0
        return position_embedding(self.config).at(self.config, self._position_tensors(), layer, grid)

    @torch.no_grad()
    def resize(self, image_size: int | tuple[int, int]) -> None:
        """Changes the model to another image size: interpolates its positions, in the convention of its weights.

        image_size: the side of a square, or rows and columns, in pixels; patches have to divide it.
        """
        config = self.config.with_(image_size=image_size)
        resized = position_embedding(config).resize(self.config, self._position_tensors(), config.grid)
        self._keep_positions({name: tensor.clone() for name, tensor in resized.items()})
        self.config = config

    def _position_tensors(self) -> dict[str, Tensor]:
        return {name: attrgetter(name)(self) for name in self.config.position_kind.tensors(self.config)}

    def _keep_positions(self, tensors: dict[str, Tensor]) -> None:
        """Registers position tensors under their names, in place of earlier ones: learned ones as parameters, others as
        buffers."""
        for name, tensor in tensors.items():
            owner, _, own_name = name.rpartition(".")
            if self.config.position_kind.learned:
                self.get_submodule(owner).register_parameter(own_name, nn.Parameter(tensor))
            else:
                self.get_submodule(owner).register_buffer(own_name, tensor)

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialises the weights as the official code does: class token 0, positions N(0, 0.02), kernels Xavier
        uniform, MLP biases N(0, 1e-6), head 0 with the configured bias."""
        positions = self.config.position_kind.tensors(self.config)
        for name, parameter in self.named_parameters():
            if name.endswith("attn.qkv.weight"):
                # Queries, keys and values have one matrix for speed, but each is initialised by itself.
                for kernel in parameter.chunk(3):
                    nn.init.xavier_uniform_(kernel)
            elif name in positions or name == "reg_token":
                nn.init.normal_(parameter, std=0.02)
            elif ".mlp." in name and name.endswith("bias"):
                nn.init.normal_(parameter, std=1e-6)
            elif name.startswith("head") and not self.config.query_tokens:
                nn.init.constant_(parameter, self.config.head_bias if name.endswith("bias") else 0.0)
            elif parameter.ndim == 4:  # the patch projection, and the convolutions of a stem
                nn.init.xavier_uniform_(parameter.flatten(1))
            elif parameter.ndim == 2:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if isinstance(self.head, QueryHead):
            self.head.initialise()

    def _random_subset(self, patches: Tensor) -> Tensor:
        """Chooses patches at random, other ones for each image: int64 (batch, kept)."""
        batch, count, _ = patches.shape
        kept = max(1, round(count * (1 - self.config.patch_dropout)))
        return torch.rand(batch, count, device=patches.device).argsort(dim=1)[:, :kept]


class PreLogits(nn.Module):
    """The hidden layer of the pre-training head: Linear, tanh."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps features (batch, width) to (batch, representation size)."""
        return torch.tanh(self.fc(x))
