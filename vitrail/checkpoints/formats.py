"""The weights formats besides the bundle: the interface that each implements, and the list of them. Does not import
torch.

A format is a class in a file of this folder and an entry in `FORMATS`; loading, converting and the command line know
formats only through these.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vitrail.config import ModelConfig, Preprocessing
from vitrail.config.entries import imported

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.checkpoints.declared_config import Declared
    from vitrail.checkpoints.name_maps import Reading, Rule
    from vitrail.models.card import Card

FORMATS: dict[str, str] = {
    "google": "google.Google",
    "huggingface": "huggingface.HuggingFace",
    "torchvision": "torchvision.Torchvision",
    "timm": "timm.Timm",
}
"""The module and class of each format, by the name that `--to` takes. In reading, the first format of this list that
recognises the tensors is used."""
Beside = Literal["nothing", "header", "folder"]
"""What comes with the tensors: nothing, a header in the file (this program writes one), or a folder's config.json."""


class WeightsFormat(ABC):
    """A format in which another program names and stores weights. Foreign names are the tensors' names in its files."""

    endings: ClassVar[tuple[str, ...]]
    """The endings of the files it is written to; "" means that it is written as a folder."""
    preprocessing: ClassVar[Mapping[str, Any]] = {}
    """Fields of Preprocessing to assume for weights that state none; if empty, mean and std of one half."""
    activation: ClassVar[str | None] = None
    """The form of GELU that the other program always computes; None if its files can say which."""
    tensors_only: ClassVar[bool] = False
    """True if files hold tensors and no configuration. Sine-cosine positions are then written as learned ones."""
    fills_in: ClassVar[bool] = False
    """True if parts that the format always has and a model lacks are to be written as zeros."""
    patches: ClassVar[str] = ""
    """The end of the patch projection's name; what is before it is the prefix of the model's tensors. "" for none."""

    @abstractmethod
    def recognises(self, tensors: "Mapping[str, Tensor]") -> bool:
        """Tells whether the tensors have the names of this format."""

    @abstractmethod
    def read(self, tensors: "Mapping[str, Tensor]", told: "Declared", beside: Beside = "nothing") -> "Reading":
        """Translates foreign tensors into this program's names and finds the model's configuration.

        Args:
            tensors: The tensors by their foreign names.
            told: What is known about the model besides the tensors.
            beside: Where a part of that knowledge comes from.

        Raises:
            UserError: If a tensor is missing or the tensors make no model of this program.
        """

    @abstractmethod
    def rules(self, state: "Mapping[str, Tensor]", config: ModelConfig) -> "list[Rule]":
        """Returns the rules by which a model's tensors become foreign ones.

        state: the model's tensors by this program's names. config: the model's. Raises UserError if the format cannot
        express the model.
        """

    def documents(
        self, config: ModelConfig, card: "Card", preprocessing: Preprocessing, state: "Mapping[str, Tensor]"
    ) -> dict[str, Any]:
        """Returns the JSON files that a folder of this format has beside its weights: their content by file name.

        Args:
            config: The model's.
            card: Its class names and origin.
            preprocessing: How its images are prepared.
            state: Its tensors by this program's names.
        """
        return {}


@cache
def weights_format(name: str) -> WeightsFormat:
    """Returns the format of this name, a key of `FORMATS`, and imports its module."""
    return imported("vitrail.checkpoints", FORMATS[name])()
