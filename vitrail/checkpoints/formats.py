"""The formats of weights besides the bundle: what each has to say, and a list of them. Without torch.

A format is a class in a file of this folder, and an entry of `FORMATS`; loading, converting and the command line ask
these two.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vitrail.config import ModelConfig, Preprocessing
from vitrail.config.entries import imported

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.checkpoints.rules import Reading, Rule
    from vitrail.checkpoints.told import Told
    from vitrail.models.card import Card

FORMATS: dict[str, str] = {
    "google": "google.Google",
    "huggingface": "huggingface.HuggingFace",
    "torchvision": "torchvision.Torchvision",
    "timm": "timm.Timm",
}
"""File and class by the name that `--to` has; the first that recognises the tensors reads them."""
Beside = Literal["nothing", "header", "folder"]
"""What stands beside the tensors: nothing, a header that this program wrote, or a config.json."""


class WeightsFormat(ABC):
    """How weights are named and kept by another program. Tensors are given by their names in the file."""

    endings: ClassVar[tuple[str, ...]]
    """Of the names that it is written to; "" is a folder."""
    preprocessing: ClassVar[Mapping[str, Any]] = {}
    """Fields of Preprocessing that are assumed of weights that carry none; empty: mean and std of one half."""
    activation: ClassVar[str | None] = None
    """The form of GELU that the format's own code computes, whatever the model; None where files say it."""
    tensors_only: ClassVar[bool] = False
    """Whether files hold tensors and nothing that says what they mean. Fixed positions are written as learned ones."""
    fills_in: ClassVar[bool] = False
    """Whether parts that the format always has, and a model lacks, are written as zeros."""
    patches: ClassVar[str] = ""
    """How the name of the patch projection ends, where other tensors beside it could belong to the model."""

    @abstractmethod
    def recognises(self, tensors: "Mapping[str, Tensor]") -> bool:
        """Tells whether the tensors have the names of this format."""

    @abstractmethod
    def read(self, tensors: "Mapping[str, Tensor]", told: "Told", beside: Beside = "nothing") -> "Reading":
        """Translates tensors into ours, and finds the configuration. told: what is known besides the tensors."""

    @abstractmethod
    def rules(self, state: "Mapping[str, Tensor]", config: ModelConfig) -> "list[Rule]":
        """Gives the rules to write a model by, or a UserError that says what the format cannot express."""

    def documents(
        self, config: ModelConfig, card: "Card", preprocessing: Preprocessing, state: "Mapping[str, Tensor]"
    ) -> dict[str, Any]:
        """Gives the JSON files that a folder has beside its weights, by name."""
        return {}


@cache
def weights_format(name: str) -> WeightsFormat:
    """Opens a format by name."""
    return imported("vitrail.checkpoints", FORMATS[name])()
