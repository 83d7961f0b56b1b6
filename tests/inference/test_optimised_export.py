"""int8, merged tokens and the search, as `vitrail export` joins them: accepted and put in place, or nothing left."""

import json

import numpy as np
import onnx
import pytest

import vitrail
from tests.conftest import toy
from tests.inference.conftest import described
from vitrail.cli import main
from vitrail.errors import UserError
from vitrail.inference.engines.onnxruntime import OnnxEngine
from vitrail.inference.optimised_export import export_optimised
from vitrail.inference.token_merging import merged


def images(model, batch: int = 3) -> np.ndarray:
    shape = (batch, model.config.channels, *model.config.rows_columns)
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def test_merged_and_int8_together_say_nearly_what_the_merged_model_says(tmp_path):
    model, told = described(toy(depth=2)), []
    out = tmp_path / "light.onnx"
    written = export_optimised(model, out, merge_tokens=3, int8=True, accept=told.append)
    assert written.files == (out,)
    assert [engine.name for engine in told] == ["onnxruntime"]
    engine = OnnxEngine(out)
    assert engine.facts.changes == {"merge_tokens": 3, "int8": "dynamic"}
    import torch

    with torch.inference_mode():
        expected = merged(model, 3)(torch.from_numpy(images(model))).numpy()
    np.testing.assert_allclose(engine.outputs(images(model)), expected, atol=0.15 * np.abs(expected).max())


def test_what_is_not_accepted_leaves_nothing(tmp_path):
    def refuse(engine) -> None:
        raise UserError("too bad")

    for int8 in (True, False):
        with pytest.raises(UserError, match="too bad"):
            export_optimised(described(toy(depth=1)), tmp_path / "light.onnx", int8=int8, accept=refuse)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def bundle(tmp_path):
    """A model that tells nothing, on photos of its own classes; each of its layers can merge one patch of 16."""
    vitrail.save(described(toy(depth=8)), tmp_path / "model")
    return tmp_path / "model"


def run(*arguments) -> int:
    try:
        main([str(each) for each in arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.slow
def test_fast_writes_the_fastest_within_the_drop(bundle, photos, tmp_path, capsys):
    out = tmp_path / "fast.onnx"
    assert run("export", bundle, "--out", out, "--fast", "--check", photos, "--max-drop", "100", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["check"]["n"] == 10  # all that can be read: the model was not trained on it
    assert document["check"]["drop"] <= document["check"]["loss"]["bound"] <= 100
    assert document["check"]["loss"]["tests"] == 2
    assert OnnxEngine(out).outputs(images(toy(depth=1))).shape == (3, 7)


@pytest.mark.slow
def test_fast_knows_that_a_resnet_has_nothing_to_merge_or_quantise(photos, tmp_path, capsys):
    resnet = vitrail.create("R50x1", stages=(1,), stem_width=32, image_size=32, num_classes=7)
    vitrail.save(described(resnet), tmp_path / "resnet")
    out = tmp_path / "fast.onnx"
    flags = ("--check", photos, "--max-drop", "100", "--opset", "21")
    assert run("export", tmp_path / "resnet", "--out", out, "--fast", *flags) == 0
    assert not OnnxEngine(out).facts.changes
    assert onnx.load(str(out)).opset_import[0].version == 21


@pytest.mark.slow
def test_merging_and_calibrated_int8_by_the_command(bundle, photos, tmp_path, capsys):
    out = tmp_path / "light.onnx"
    flags = ("--int8", "--calibrate", photos, "--merge-tokens", "2", "--check", photos, "--max-drop", "100")
    assert run("export", bundle, "--out", out, *flags) == 0
    assert OnnxEngine(out).facts.changes == {"merge_tokens": 2, "int8": "static"}
    assert "agreement" in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "words"), [
    (["--fast"], "--check"),
    (["--fast", "--check", "digits", "--int8"], "leave them out"),
    (["--calibrate", "digits"], "--int8"),
    (["--int8", "--to", "openvino"], "--to onnx"),
])  # fmt: skip
def test_combinations_that_cannot_be_say_so(bundle, tmp_path, capsys, flags, words):
    out = tmp_path / ("light.xml" if "openvino" in flags else "light.onnx")
    assert run("export", bundle, "--out", out, *flags) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_a_hybrid_with_merging_says_so(tmp_path, capsys):
    hybrid = toy(stages=(1,), stem_width=32, patch_size=1, depth=1)
    vitrail.save(described(hybrid), tmp_path / "hybrid")
    assert run("export", tmp_path / "hybrid", "--out", tmp_path / "light.onnx", "--merge-tokens", "2") == 2
    assert "not supported for hybrids" in capsys.readouterr().err
