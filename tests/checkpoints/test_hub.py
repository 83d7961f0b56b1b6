"""hf:owner/name through the real client, against a local server that speaks the hub's protocol."""

import pytest
import torch

import vitrail
from tests.conftest import pictures, toy
from vitrail.checkpoints.convert import convert
from vitrail.errors import UserError


@pytest.mark.parametrize("layout", ["bundle", "timm", "huggingface"])
def test_every_folder_layout(hub, tmp_path, layout):
    model = toy()
    vitrail.save(model, tmp_path / "bundle")
    convert(tmp_path / "bundle", hub.root / "someone" / "tiny-vit", layout, check=False)
    (hub.root / "someone/tiny-vit/evil.py").write_text("raise SystemExit")
    again = vitrail.load("hf:someone/tiny-vit")
    with torch.no_grad():
        assert torch.equal(again(pictures(model)), model(pictures(model)))
    assert not any("evil" in path for path in hub.asked), "code is never fetched"


def test_pickled_weights_only_where_there_is_nothing_better(hub, tmp_path):
    model = toy()
    vitrail.save(model, tmp_path / "bundle")
    convert(tmp_path / "bundle", tmp_path / "hf", "huggingface", check=False)
    folder = hub.repository("someone/old-vit")
    (folder / "config.json").write_bytes((tmp_path / "hf/config.json").read_bytes())
    from safetensors.torch import load_file

    torch.save(load_file(tmp_path / "hf/model.safetensors"), folder / "pytorch_model.bin")
    again = vitrail.load("hf:someone/old-vit")
    assert again.config.width == model.config.width
    assert "pytorch_model.bin" in hub.downloads()


def test_a_missing_repository_is_a_sentence(hub):
    with pytest.raises(UserError, match="hf:no/body"):
        vitrail.load("hf:no/body")


@pytest.mark.parametrize("name", ["hf:", "hf:onlyname", "hf:../../etc/passwd", "hf:a/b/c"])
def test_names_that_are_none(name):
    with pytest.raises(UserError, match="hf:owner/name"):
        vitrail.load(name)
