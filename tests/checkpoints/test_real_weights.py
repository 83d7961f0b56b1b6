"""Real DeiT-Ti/16 weights on real photos: golden logits, top-1 and top-5. Needs the folder VITRAIL_ASSETS names."""

import json
import shutil

import numpy as np
import pytest
import torch

import vitrail
from vitrail.checkpoints.convert import convert
from vitrail.data.transforms import EvaluationTransform

pytestmark = pytest.mark.assets


@pytest.fixture(scope="module")
def model(assets):
    labels = assets / "imagenet-labels.json"
    return vitrail.load(assets / "deit-ti16.safetensors", preprocessing="imagenet", labels=labels)


@torch.inference_mode()
def logits(model, files) -> torch.Tensor:
    prepared = [prepare(model, file) for file in files]
    return torch.cat([model(torch.stack(prepared[i : i + 25])) for i in range(0, len(prepared), 25)])


def prepare(model, file) -> torch.Tensor:
    preprocessing = model.card.preprocessing
    pixels = torch.tensor(EvaluationTransform(preprocessing)(file.read_bytes())).permute(2, 0, 1) / 255
    return (pixels - torch.tensor(preprocessing.mean)[:, None, None]) / torch.tensor(preprocessing.std)[:, None, None]


def test_it_is_recognised(model):
    assert model.config.name == "Ti/16"
    assert model.config.num_classes == 1000
    assert sum(parameter.numel() for parameter in model.parameters()) == 5_717_416
    assert model.card.label_descriptions[model.card.label_names[0]].startswith("tench")


def test_golden_logits(model, assets):
    with np.load(assets / "golden-deit-ti16.npz", allow_pickle=False) as golden:
        files, expected = golden["files"].tolist(), torch.from_numpy(golden["logits"])
    ours = logits(model, [find(assets, name) for name in files])
    assert len(files) == 16
    assert (ours - expected).abs().max() <= 1e-4


def find(assets, name: str):
    return next(path for path in (assets / name, assets / "imagenet-sample" / name) if path.exists())


@pytest.mark.slow
def test_top_1_and_top_5_on_the_sample_photos(model, assets):
    """346 and 457 of 500, as timm counts them."""
    folders = sorted(folder for folder in (assets / "imagenet-sample").iterdir() if folder.is_dir())
    files = [(file, folder.name) for folder in folders for file in sorted(folder.iterdir())]
    assert len(files) == 500
    names = model.card.label_names
    best = logits(model, [file for file, _ in files]).topk(5).indices.tolist()
    top1 = sum(names[row[0]] == label for row, (_, label) in zip(best, files, strict=True))
    top5 = sum(label in [names[i] for i in row] for row, (_, label) in zip(best, files, strict=True))
    assert (top1, top5) == (346, 457)


def test_round_the_formats_with_real_weights(peers, assets, model, tmp_path):
    """timm file -> bundle -> huggingface -> google -> torchvision, each step compared by the libraries themselves."""
    weights = assets / "deit-ti16.safetensors"
    first = convert(weights, tmp_path / "bundle", labels=assets / "imagenet-labels.json")
    assert first.max_logit_difference <= 1e-5
    assert "of the source by timm" in first.compared
    second = convert(tmp_path / "bundle", tmp_path / "hf", "huggingface")
    assert second.max_logit_difference <= 1e-5
    third = convert(tmp_path / "hf", tmp_path / "tv.safetensors", "torchvision")
    assert third.max_logit_difference <= 1e-5
    assert "by huggingface; of the result by torchvision" in third.compared
    twin = peers.timm.create_model(f"local-dir:{tmp_path / 'bundle'}", pretrained=True).eval()
    files = sorted((assets / "imagenet-sample").glob("*/*"))[:8]
    with torch.inference_mode():
        theirs = twin(torch.stack([prepare(model, file) for file in files]))
    assert (theirs - logits(model, files)).abs().max() <= 1e-5
    names = json.loads((tmp_path / "bundle/config.json").read_text())["label_names"]
    assert names == list(model.card.label_names)


def test_one_flipped_bit_in_a_real_bundle_is_noticed(assets, tmp_path):
    convert(assets / "deit-ti16.safetensors", tmp_path / "bundle", check=False)
    path = tmp_path / "bundle/model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(vitrail.UserError, match="SHA-256"):
        vitrail.load(tmp_path / "bundle")
    shutil.rmtree(tmp_path / "bundle")
