"""The Vision Transformer, in the order of the paper.

    z0 = [class; x1 E; ...; xN E] + Epos           embed
    z' = MSA(LN(z)) + z                            encode: depth times
    z  = MLP(LN(z')) + z'
    y  = LN(zL)[class]                             pool
    logits = y W                                   head

MSA is in `attention.py`, Epos in `positions.py`. State-dict names are the ones timm, DeiT, MAE, DINO and DINOv2 share,
so their weights load with no renaming.
"""

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
from vitrail.models.resnet import stem


class PatchEmbedding(nn.Module):
    """Images -> one token a patch. A convolution of stride P and a reshape with a Linear are the same map."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.backbone = None if config.stages is None else stem(config)
        self.by_convolution = config.patch_embedding == "convolution"
        self.patch_size = config.patch_size
        self.proj = nn.Conv2d(config.stem_outputs, config.width, config.patch_size, config.patch_size)

    def forward(self, images: Tensor) -> Tensor:
        x = images if self.backbone is None else self.backbone(images)
        if self.by_convolution:
            return self.proj(x).flatten(2).transpose(1, 2)  # (batch, patches, width)
        return F.linear(patchify(x, self.patch_size), self.proj.weight.flatten(1), self.proj.bias)


def patchify(images: Tensor, patch_size: int) -> Tensor:
    """(batch, channels, rows, columns) -> (batch, patches, channels * P * P), raster order."""
    batch, channels, rows, columns = images.shape
    cut = images.reshape(batch, channels, rows // patch_size, patch_size, columns // patch_size, patch_size)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * patch_size**2)


class Mlp(nn.Module):
    """Linear, GELU, Linear. In the SwiGLU form half of the hidden units gate the other half."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.activation = config.activation
        inner = config.mlp_dim // 2 if config.activation == "swiglu" else config.mlp_dim
        self.fc1 = nn.Linear(config.width, config.mlp_dim)
        self.fc2 = nn.Linear(inner, config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        if self.activation == "swiglu":
            gate, value = x.chunk(2, dim=-1)
            x = F.silu(gate) * value
        else:
            x = F.gelu(x, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        return self.drop(self.fc2(self.drop(x)))


class LayerScale(nn.Module):
    def __init__(self, width: int, value: float):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), float(value)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class DropPath(nn.Module):
    """Drops the whole residual branch of a sample with probability p and scales the kept ones by 1 / (1 - p). In an
    axial block the samples are its rows or columns."""

    def __init__(self, probability: float):
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return x
        keep = 1 - self.probability
        return x * (x.new_empty(x.shape[0], 1, 1).bernoulli_(keep) / keep)


class Block(nn.Module):
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
        self, x: Tensor, grid: Grid, record: Recorder | None = None, layer: int = 0, first: int | None = None
    ) -> Tensor:
        """Of all tokens, or of the first few alone; these look at all the same."""
        x = x[:, :first] + self.drop_path(self.ls1(self.attn(self.norm1(x), grid, record, layer, first)))
        return x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))


class AxialBlock(nn.Module):
    """Appendix D.6: attention along the rows and MLP, then attention along the columns and MLP."""

    def __init__(self, config: ModelConfig, drop_path: float):
        super().__init__()
        self.row = Block(config, drop_path)
        self.column = Block(config, drop_path)

    def forward(self, x: Tensor, grid: Grid, record: Recorder | None = None, layer: int = 0) -> Tensor:
        batch = x.shape[0]
        x = self.row(x.unflatten(1, grid).flatten(0, 1), grid, record, 2 * layer)  # (batch * rows, columns, width)
        x = x.unflatten(0, (batch, grid[0])).transpose(1, 2)  # (batch, columns, rows, width)
        x = self.column(x.flatten(0, 1), grid, record, 2 * layer + 1)
        return x.unflatten(0, (batch, grid[1])).transpose(1, 2).flatten(1, 2)


class ViT(Predicts, nn.Module):
    """A Vision Transformer. The steps are public: `embed`, `encode`, `pool`, `head`; `forward` joins them."""

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
        self.head = nn.Linear(features, config.num_classes) if config.num_classes else nn.Identity()
        distilled = config.distillation_token and config.num_classes
        self.head_dist = nn.Linear(features, config.num_classes) if distilled else None

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.encode(self.embed(images), self.grid_of(images), first=self.read_tokens)
        return self.classify(self.pool(tokens), tokens)

    def features(self, images: Tensor) -> Tensor:
        """What the head sees: (batch, width)."""
        return self.pool(self.encode(self.embed(images), self.grid_of(images), first=self.read_tokens))

    @property
    def read_tokens(self) -> int | None:
        """How many of the last layer's tokens the head reads; None for all. Where no gradient is wanted the last layer
        is computed for these alone: the same logits, and of twelve layers three quarters of one less to do."""
        config = self.config
        if torch.is_grad_enabled() or config.pooling != "class":
            return None
        if config.attention == "axial" or config.position_kind.in_attention:
            return None
        return 1 if self.head_dist is None else 2

    def embed(self, images: Tensor) -> Tensor:
        """Images (batch, channels, rows, columns) -> tokens (batch, prefix + patches, width) with positions."""
        grid = self.grid_of(images)
        return self.place(self.patch_embed(images), grid)

    def place(self, patches: Tensor, grid: Grid, keep: Tensor | None = None) -> Tensor:
        """Patch embeddings -> tokens: each gets its position, and the prefix tokens stand before them. `keep` (batch,
        kept) are the patches that go on, by their place in the grid; without it patch dropout draws them in training.
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
            keep = self._drawn(patches)
        if keep is not None:
            patches = patches.gather(1, keep[..., None].expand(-1, -1, patches.shape[2]))
        tokens = torch.cat([*(token.expand(patches.shape[0], -1, -1) for token in prefix), patches], dim=1)
        return self.pos_drop(tokens)

    def encode(
        self, tokens: Tensor, grid: Grid | None = None, record: Recorder | None = None, first: int | None = None
    ) -> Tensor:
        """The blocks and the final norm. `grid` is needed where it is not the configuration's; with `first` only so
        many of the last layer's tokens are computed."""
        grid = grid or self.config.grid
        every_layer = self.config.positions_at != "stem"
        for layer, block in enumerate(self.blocks):
            if every_layer and layer and (positions := self.positions(layer, grid)) is not None:
                bare = tokens.shape[1] - positions.shape[1]  # prefix tokens that have no position
                tokens = tokens + F.pad(positions, (0, 0, bare, 0))
            if self.config.gradient_checkpointing and self.training and record is None:
                tokens = checkpoint(block, tokens, grid, use_reentrant=False)  # pyright: ignore[reportAssignmentType]
            else:
                last = first is not None and layer == len(self.blocks) - 1
                tokens = block(tokens, grid, record, layer, first) if last else block(tokens, grid, record, layer)
            if record is not None and record.wants("hidden", layer):
                record.keep("hidden", layer, tokens)
        return self.norm(tokens)

    def pool(self, tokens: Tensor) -> Tensor:
        """The class token, or the average of the patch tokens; then the pre-training head's tanh layer if any."""
        if self.config.pooling == "class":
            pooled = tokens[:, 0]
        else:
            pooled = tokens[:, self.config.prefix_tokens :].mean(dim=1)
        return self.pre_logits(self.fc_norm(pooled))

    def classify(self, pooled: Tensor, tokens: Tensor) -> Tensor:
        """Logits of what `pool` gave; DeiT averages its two classifiers, and the second has a token of its own."""
        logits = self.head(pooled)
        if self.head_dist is not None:
            logits = (logits + self.head_dist(self.pre_logits(tokens[:, 1]))) / 2
        return logits

    def grid_of(self, images: Tensor) -> Grid:
        if images.ndim != 4 or images.shape[1] != self.config.channels:
            raise UserError(
                f"the model takes images of shape (batch, {self.config.channels}, rows, columns), "
                f"not {tuple(images.shape)}"
            )
        size = (images.shape[2], images.shape[3])
        return self.config.grid if size == self.config.rows_columns else self.config.grid_for(size)

    def positions(self, layer: int, grid: Grid) -> Tensor | None:
        """Positions added before a layer (1, tokens that have one, width), interpolated where the grid is another."""
        layer = layer if self.config.positions_at == "every_layer" else 0
        return position_embedding(self.config).at(self.config, self._position_tensors(), layer, grid)

    @torch.no_grad()
    def resize(self, image_size: int | tuple[int, int]) -> None:
        """Take images of another size from now on: positions are interpolated once, in the model's convention."""
        config = self.config.with_(image_size=image_size)
        resized = position_embedding(config).resize(self.config, self._position_tensors(), config.grid)
        self._keep_positions({name: tensor.clone() for name, tensor in resized.items()})
        self.config = config

    def _position_tensors(self) -> dict[str, Tensor]:
        return {name: attrgetter(name)(self) for name in self.config.position_kind.tensors(self.config)}

    def _keep_positions(self, tensors: dict[str, Tensor]) -> None:
        """Registers tensors under their names, in place of what is there: learned ones as parameters."""
        for name, tensor in tensors.items():
            owner, _, own_name = name.rpartition(".")
            if self.config.position_kind.learned:
                self.get_submodule(owner).register_parameter(own_name, nn.Parameter(tensor))
            else:
                self.get_submodule(owner).register_buffer(own_name, tensor)

    @torch.no_grad()
    def initialise(self) -> None:
        """As the official code: class token 0, positions N(0, 0.02), kernels Xavier uniform, MLP biases N(0, 1e-6),
        head 0 with the configured bias."""
        positions = self.config.position_kind.tensors(self.config)
        for name, parameter in self.named_parameters():
            if name.endswith("attn.qkv.weight"):
                for kernel in parameter.chunk(3):  # fused for speed, but three kernels
                    nn.init.xavier_uniform_(kernel)
            elif name in positions or name == "reg_token":
                nn.init.normal_(parameter, std=0.02)
            elif ".mlp." in name and name.endswith("bias"):
                nn.init.normal_(parameter, std=1e-6)
            elif name.startswith("head"):
                nn.init.constant_(parameter, self.config.head_bias if name.endswith("bias") else 0.0)
            elif parameter.ndim == 4:  # the patch projection, and the convolutions of a stem
                nn.init.xavier_uniform_(parameter.flatten(1))
            elif parameter.ndim == 2:
                nn.init.xavier_uniform_(parameter)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def _drawn(self, patches: Tensor) -> Tensor:
        """A random subset of the patches, another one for every image: (batch, kept)."""
        batch, count, _ = patches.shape
        kept = max(1, round(count * (1 - self.config.patch_dropout)))
        return torch.rand(batch, count, device=patches.device).argsort(dim=1)[:, :kept]


class PreLogits(nn.Module):
    """The hidden layer of the pre-training head: Linear, tanh."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc(x))
