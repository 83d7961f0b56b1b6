"""int8: what becomes integers and what does not, that little is lost, and what is said where it cannot be done."""

import sys

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import vitrail
from tests.conftest import pictures
from vitrail import UserError
from vitrail.inference.engines.onnxruntime import OnnxEngine
from vitrail.inference.export import export
from vitrail.inference.quantize import dynamic, layers, static


@pytest.fixture(scope="module")
def batches(model) -> list[np.ndarray]:
    return [pictures(model, 4, seed=seed).numpy() for seed in range(4)]


@pytest.fixture(scope="module")
def eight(exported, batches, tmp_path_factory):
    """The toy model in 8 bits, by name of the kind."""
    folder = tmp_path_factory.mktemp("int8")
    return {
        "dynamic": dynamic(exported, folder / "dynamic.onnx"),
        "static": static(exported, folder / "static.onnx", batches),
        "percentile": static(exported, folder / "percentile.onnx", iter(batches), calibration="percentile"),
    }


@pytest.mark.parametrize("kind", ["dynamic", "static", "percentile"])
def test_it_says_nearly_what_the_exported_model_says(eight, exported, batches, kind):
    before, after = OnnxEngine(exported), OnnxEngine(eight[kind])
    images = np.concatenate(batches)
    expected, found = before.outputs(images), after.outputs(images)
    assert np.abs(found - expected).max() > 0, "something was quantised"
    assert np.sqrt(((found - expected) ** 2).mean()) < 0.05 * expected.std()
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).mean() >= 0.8
    assert after.features(images[:1]).shape == (1, 32)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_the_linears_of_the_blocks_are_integers_of_7_bits_and_the_rest_is_float(eight, exported, model, kind):
    depth = model.config.depth
    assert len(layers(onnx.load(exported))) == depth * 4
    document = onnx.load(eight[kind])
    weights = [numpy_helper.to_array(each) for each in document.graph.initializer]
    matrices = [each for each in weights if each.dtype == np.int8 and each.ndim == 2]
    assert sorted(each.shape for each in matrices) == sorted(depth * [(32, 96), (32, 32), (32, 64), (64, 32)])
    assert all(np.abs(each).max() <= 64 for each in matrices), "8 bits overflow on processors without VNNI"
    assert all(np.abs(each).max(axis=0).min() >= 60 for each in matrices), "each column has a scale of its own"
    floats = [each.shape for each in weights if each.dtype == np.float32]
    assert (32, 3, 8, 8) in floats, "the patch projection"
    assert {(7, 32), (32, 7)} & set(floats), "the head"
    onnx.checker.check_model(document)


def test_products_before_the_first_norm_and_without_weights_stay_float():
    """A patch projection that is a product, and attention's own products."""
    node = onnx.helper.make_node
    nodes = [
        node("MatMul", ["patches", "projection"], ["x"], "patch projection"),
        node("LayerNormalization", ["x", "scale"], ["normed"], "norm"),
        node("MatMul", ["normed", "weight"], ["y"], "linear"),
        node("MatMul", ["y", "normed"], ["z"], "attention"),
    ]
    kept = [numpy_helper.from_array(np.eye(2, dtype=np.float32), name) for name in ("projection", "scale", "weight")]
    document = onnx.helper.make_model(onnx.helper.make_graph(nodes, "toy", [], [], kept))
    assert layers(document) == ["linear"]


def test_the_file_is_smaller_and_carries_its_facts(eight, exported):
    assert eight["dynamic"].stat().st_size < exported.stat().st_size
    before = OnnxEngine(exported).facts
    for kind, name in (("dynamic", "dynamic"), ("static", "static"), ("percentile", "static")):
        after = OnnxEngine(eight[kind]).facts
        assert (after.label_names, after.preprocessing) == (before.label_names, before.preprocessing)
        assert after.changes == {**before.changes, "int8": name}


@pytest.mark.parametrize("make", ["dynamic", "static"])
def test_without_onnxruntime_a_sentence_says_what_to_install(monkeypatch, exported, tmp_path, make):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r'int8.*pip install "vitrail\[export\]"'):
        if make == "dynamic":
            dynamic(exported, tmp_path / "out.onnx")
        else:
            static(exported, tmp_path / "out.onnx", [np.zeros((1, 3, 32, 32), np.float32)])
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_done_leaves_nothing_behind(exported, tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    (tmp_path / "there.onnx").write_bytes(b"mine")
    tries = [
        (lambda: dynamic(tmp_path / "none.onnx", tmp_path / "a.onnx"), "no such file"),
        (lambda: dynamic(tmp_path / "bad.onnx", tmp_path / "a.onnx"), "bad.onnx"),
        (lambda: dynamic(exported, tmp_path / "a.xml"), "must end in .onnx"),
        (lambda: dynamic(exported, tmp_path / "there.onnx"), "exists already"),
        (lambda: static(exported, tmp_path / "a.onnx", []), "needs images"),
        (lambda: static(exported, tmp_path / "a.onnx", [], calibration="most"), "minmax"),  # pyright: ignore
    ]
    for attempt, words in tries:
        with pytest.raises(UserError, match=words):
            attempt()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.onnx", "there.onnx"]
    assert (tmp_path / "there.onnx").read_bytes() == b"mine"


@pytest.mark.slow
@pytest.mark.assets
def test_real_weights_lose_at_most_a_point(assets, tmp_path):
    """Of 500 photos the plain model has 346 right."""
    from vitrail.data import match_classes, open_source
    from vitrail.data.loader import EvaluationLoader

    model = vitrail.load(assets / "deit-ti16.safetensors", labels=assets / "imagenet-labels.json")
    source = open_source(str(assets / "imagenet-sample"))
    places = match_classes(model.card.label_names, source.classes, subset=True)
    assert model.card.preprocessing is not None
    engine = OnnxEngine(dynamic(export(model, tmp_path / "plain.onnx").files[0], tmp_path / "int8.onnx"))
    right = 0
    for batch in EvaluationLoader(source.split("all"), model.card.preprocessing, batch_size=20):
        right += int((engine.outputs(batch.images.numpy()).argmax(axis=1) == places[batch.targets.numpy()]).sum())
    assert right >= 341
