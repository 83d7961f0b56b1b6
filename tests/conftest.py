"""Shared fixtures: the peers that tests compare with, toy models, and the real material where it is there."""

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest
import torch

from tests.hub_server import Hub, serve, write_like_published
from vitrail.checkpoints.peers.libraries import import_peer
from vitrail.checkpoints.published import by_name
from vitrail.models.build import Model, create

# How long an example takes says more about what else the machine does than about the code.
hypothesis.settings.register_profile(
    "vitrail", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("vitrail")
LONGEST = (
    "tests/test_docs.py",
    "tests/training/test_processes.py",
    "tests/training/test_probe.py",
    "tests/cli/test_processes.py",
    "tests/recorded/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, and files whose tests share long preparations: what is left at the end is short, and can be
    divided without preparing anything twice."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """The same weights whichever tests have run before."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def peers():
    """timm, transformers, torchvision and vit_pytorch, imported once. Their import-time warnings are theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = ("torchvision", "timm", "transformers", "vit_pytorch")
        modules = {name: import_peer(name) for name in names}
        import torchvision.models.vision_transformer  # noqa: F401
        from transformers import ViTForImageClassification, ViTMAEForPreTraining, ViTModel  # noqa: F401

        modules["transformers"].logging.set_verbosity_error()
        modules["transformers"].logging.disable_progress_bar()
    return SimpleNamespace(**modules)


@pytest.fixture(scope="session")
def like_ti16(tmp_path_factory) -> Path:
    """A folder as the hub has it for `Ti/16`, with weights of no worth."""
    torch.manual_seed(0)
    weights = by_name("Ti/16")
    assert weights is not None
    return write_like_published(weights, tmp_path_factory.mktemp("published") / "Ti-16")


@pytest.fixture
def ti16(hub, like_ti16) -> Hub:
    """A hub that has the weights `Ti/16`."""
    for file in like_ti16.iterdir():
        (hub.repository("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k") / file.name).symlink_to(file)
    return hub


@pytest.fixture
def hub(tmp_path) -> Iterator[Hub]:
    """A hub of our own, empty, which the client is led to."""
    yield from serve(tmp_path / "hub")


@pytest.fixture(scope="session")
def assets() -> Path:
    """Real weights and photos, in the folder VITRAIL_ASSETS names."""
    folder = os.environ.get("VITRAIL_ASSETS")
    if not folder or not Path(folder).is_dir():
        pytest.skip("VITRAIL_ASSETS names no folder")
    return Path(folder)


def randomised(model: Model, seed: int = 0) -> Model:
    """Every parameter random, so that nothing hides behind an initial zero or one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 0.05 if parameter.ndim > 1 else 0.1
            is_scale = name.endswith("weight") and parameter.ndim == 1
            parameter.copy_(noise * scale + (1.0 if is_scale or name.endswith("gamma") else 0.0))
    return model


def toy(**overrides) -> Model:
    """A small ViT with random weights in every tensor."""
    fields = {"width": 32, "depth": 3, "num_heads": 4, "mlp_dim": 64, "patch_size": 8, "image_size": 32}
    return randomised(create("Ti/16", **{**fields, "num_classes": 7, **overrides}))


def pictures(model: Model, batch: int = 2, seed: int = 1) -> torch.Tensor:
    shape = (batch, model.config.channels, *model.config.rows_columns)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
