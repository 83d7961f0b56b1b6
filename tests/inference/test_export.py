"""Every model of the family exports and computes the same; a file is written whole, checked, or not at all."""

import json

import numpy as np
import onnx
import pytest
import torch

from tests.conftest import pictures, randomised, toy
from tests.inference.conftest import described
from vitrail.config import Preprocessing
from vitrail.errors import UserError
from vitrail.inference import export as exporting
from vitrail.inference.accuracy_drop import estimate_drop
from vitrail.inference.compare import CheckSet, compare_accuracy, refusal_of_drop
from vitrail.inference.engines.facts import ExportMetadata
from vitrail.inference.engines.onnxruntime import OnnxEngine
from vitrail.inference.engines.openvino import OpenVinoEngine
from vitrail.inference.engines.torch import TorchEngine
from vitrail.inference.export import export
from vitrail.models.build import create

SMALL = {"depth": 1, "width": 16, "num_heads": 2, "mlp_dim": 32}


def bit(**overrides):
    config = {"stages": (1, 1, 1, 1), "stem_width": 32, "image_size": (64, 96), "num_classes": 5, **overrides}
    return randomised(create("BiT-R50x1", **config))


QUICK = {
    "registers, LayerScale, no class position": lambda: toy(
        **SMALL, registers=3, layer_scale=0.1, class_position=False
    ),
    "relative": lambda: toy(**SMALL, positions="relative", image_size=(24, 40)),
    "hybrid": lambda: toy(**SMALL, stages=(1,), stem_width=32, image_size=64, patch_size=4),
    "BiT, grey": lambda: bit(channels=1, stages=(1, 1)),
}
SLOW = {
    "average": lambda: toy(**SMALL, pooling="average", norm_after_pooling=True),
    "sincos": lambda: toy(**SMALL, positions="sincos"),
    "learned_2d at every layer": lambda: toy(
        **{**SMALL, "depth": 2}, positions="learned_2d", positions_at="every_layer"
    ),
    "axial": lambda: toy(**SMALL, attention="axial", class_token=False, pooling="average"),
    "distilled": lambda: toy(**SMALL, distillation_token=True),
    "swiglu": lambda: toy(**SMALL, activation="swiglu", qkv_bias=False),
    "tanh, Linear patches, pre-logits": lambda: toy(
        **SMALL, activation="gelu_tanh", patch_embedding="linear", representation_size=8
    ),
    "no head": lambda: toy(**SMALL, num_classes=0),
    "hybrid, timm's arithmetic": lambda: toy(
        **SMALL, stages=(1, 1), stem_width=32, image_size=64, patch_size=1, stem_arithmetic="timm"
    ),
    "hybrid, the root alone": lambda: toy(**SMALL, stages=(), stem_width=32, image_size=60, patch_size=3),
    "BiT, timm's arithmetic": lambda: bit(stem_arithmetic="timm"),
}
CASES = [pytest.param(make, id=name) for name, make in QUICK.items()]
CASES += [pytest.param(make, id=name, marks=pytest.mark.slow) for name, make in SLOW.items()]


@pytest.mark.parametrize("make", CASES)
def test_the_whole_family_exports_to_the_same_numbers(make, tmp_path):
    model = make().eval()
    path = export(model, tmp_path / "model.onnx").files[0]
    for engine in (OnnxEngine(path), OpenVinoEngine(path)):
        for batch in (1, 3):
            images = pictures(model, batch)
            with torch.inference_mode():
                logits, features = model(images).numpy(), model.features(images).numpy()
            assert np.abs(engine.features(images.numpy()) - features).max() <= 1e-4, engine.name
            if model.config.num_classes:
                assert np.abs(engine.outputs(images.numpy()) - logits).max() <= 1e-4, engine.name


def test_the_onnx_file_is_clean(exported, model):
    document = onnx.load(exported)
    onnx.checker.check_model(document, full_check=True)
    (images,) = document.graph.input
    assert images.name == "images"
    assert [size.dim_param or size.dim_value for size in images.type.tensor_type.shape.dim] == ["batch", 3, 32, 32]
    assert [output.name for output in document.graph.output] == ["logits", "features"]
    facts = json.loads(document.metadata_props[0].value)
    assert facts["preprocessing"]["mean"] == [0.4, 0.5, 0.6]
    assert facts["label_names"] == list(model.card.label_names)
    assert b"site-packages" not in exported.read_bytes()  # no trace of the machine it was made on
    operators = [node.op_type for node in document.graph.node]
    assert operators.count("LayerNormalization") == 3
    assert operators.count("Gelu") == 1
    assert operators.count("Softmax") == 1
    assert not {"Erf", "ReduceMean", "Loop", "If"} & set(operators)


def test_exporting_leaves_the_model_alone(tmp_path):
    model = bit(num_classes=2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()
    export(model, tmp_path / "model.pt2", "torch")
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_torch_program_carries_the_facts(model, tmp_path):
    path = export(model, tmp_path / "model.pt2", "torch").files[0]
    extra = {"vitrail.json": ""}
    program = torch.export.load(path, extra_files=extra).module()  # we wrote it, so we may
    images = pictures(model, 5)
    torch.testing.assert_close(program(images)[0], model(images), atol=1e-5, rtol=0)
    assert json.loads(extra["vitrail.json"])["label_names"] == list(model.card.label_names)


def test_weights_that_do_not_fit_into_one_file_lie_beside_it(model, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "LARGEST_PROTOBUF", 1000)
    written = export(model, tmp_path / "model.onnx")
    assert [file.name for file in written.files] == ["model.onnx", "model.onnx.data"]
    images = pictures(model, 2)
    assert np.abs(OnnxEngine(written.files[0]).outputs(images.numpy()) - model(images).detach().numpy()).max() <= 1e-4


def test_what_is_refused_leaves_nothing_and_harms_nothing(model, tmp_path):
    (tmp_path / "model.onnx").write_text("the old one")

    def refuse(engine):
        assert engine.name == "onnxruntime"
        raise UserError("too bad")

    with pytest.raises(UserError, match="exists already"):
        export(model, tmp_path / "model.onnx")
    with pytest.raises(UserError, match="too bad"):
        export(model, tmp_path / "model.onnx", overwrite=True, accept=refuse)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("model.onnx", "the old one")]
    for name, to in (("model.txt", "onnx"), ("model.onnx", "openvino"), ("model.onnx", "torch")):
        with pytest.raises(UserError, match="whose name ends in"):
            export(model, tmp_path / name, to)
    for name, to, beside in (("a.xml", "openvino", "a.bin"), ("a.onnx", "onnx", "a.onnx.data")):
        (tmp_path / beside).write_text("of something else")
        with pytest.raises(UserError, match=rf"{beside}: exists already"):
            export(model, tmp_path / name, to)
        assert (tmp_path / beside).read_text() == "of something else"
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        export(model, tmp_path / "folder.onnx")


def test_a_missing_package_is_said(model, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(UserError, match=r'onnx is not installed: pip install "vitrail\[export\]"'):
        export(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_another_size_of_images_is_noticed(tmp_path):
    model = described(toy(), Preprocessing(48))
    with pytest.raises(UserError, match="give --image-size"):
        export(model, tmp_path / "model.onnx")


def test_checking_counts_and_refuses(photos):
    model, other = described(toy()), described(randomised(toy(), seed=5))
    pictures = CheckSet(ExportMetadata.of(model.config, model.card), str(photos), split="all", batch_size=4)
    same = compare_accuracy(TorchEngine(model), TorchEngine(model), pictures)
    assert (same.n, same.skipped, same.agreement, same.drop) == (10, 2, 1.0, 0.0)
    assert same.loss.within(0.0)
    found = compare_accuracy(TorchEngine(model), TorchEngine(other), pictures)
    assert found.agreement < 1
    logits = [np.concatenate([TorchEngine(each).outputs(images) for images, _ in pictures]) for each in (model, other)]
    labels = np.concatenate([labels for _, labels in pictures])
    assert found.loss == estimate_drop(*logits, labels)
    right = [(each.argmax(axis=1) == labels).mean() for each in logits]
    assert [found.top1_before, found.top1_after] == right
    assert found.drop == pytest.approx(found.loss.counted)
    assert not found.loss.within(1.0)
    refusal = str(refusal_of_drop(found.loss, 1.0))
    assert f"--max-drop 1 cannot be promised: at most {found.loss.bound:.2f} points lost" in refusal
    assert "nothing was written" in refusal


@pytest.mark.parametrize(
    ("max_drop", "words"), [(60.0, "check on more pictures, about "), (1.0, "change the model less")]
)
def test_a_refusal_says_what_would_help(max_drop, words):
    before = np.random.default_rng(0).normal(size=(12, 7))
    after = before + 0.3 * np.random.default_rng(1).normal(size=(12, 7))
    after[:3] = np.roll(before[:3], 1, axis=1)
    assert words in str(refusal_of_drop(estimate_drop(before, after, before.argmax(axis=1)), max_drop))
