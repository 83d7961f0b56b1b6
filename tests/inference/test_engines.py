"""Every engine gives torch's numbers; exported models run without torch; `auto` measures, remembers, never fails."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vitrail
from tests.conftest import pictures, toy
from tests.inference.conftest import CLASSES, described, encoded
from vitrail.errors import UserError
from vitrail.inference import engine_selection
from vitrail.inference.engine_selection import CHOICES, Loading, Memory, measure_engines, open_engine
from vitrail.inference.engines.facts import KEY, ExportMetadata, read_onnx_facts
from vitrail.inference.engines.onnxruntime import OnnxEngine
from vitrail.inference.engines.openvino import OpenVinoEngine
from vitrail.inference.engines.torch import TorchEngine
from vitrail.inference.export import export
from vitrail.inference.predictor import Predictor


@pytest.fixture(scope="module")
def engines(model, exported, tmp_path_factory):
    xml = export(model, tmp_path_factory.mktemp("openvino") / "toy.xml", "openvino").files[0]
    return {
        "torch": TorchEngine(model),
        "onnxruntime": OnnxEngine(exported),
        "openvino": OpenVinoEngine(xml),
        "openvino reading onnx": OpenVinoEngine(exported),
    }


@pytest.fixture
def bundle(model, tmp_path) -> Path:
    return vitrail.save(model, tmp_path / "bundle")


@pytest.mark.parametrize("batch", range(1, 9))
def test_logits_and_features_are_within_a_ten_thousandth_of_torch(model, engines, batch):
    images = pictures(model, batch, seed=batch)
    with torch.inference_mode():
        logits, features = model(images).numpy(), model.features(images).numpy()
    for name, engine in engines.items():
        assert np.abs(engine.outputs(images.numpy()) - logits).max() <= 1e-4, name
        assert np.abs(engine.features(images.numpy()) - features).max() <= 1e-4, name


def test_facts_travel_with_the_file(model, engines):
    for engine in engines.values():
        assert engine.facts.preprocessing == model.card.preprocessing
        assert engine.facts.label_names == CLASSES
        assert engine.facts.label(2) == ("n2", "ein Ding — 物")
        assert engine.facts.config == model.config
        assert engine.facts.features_width == 32


def test_a_batch_fits_into_the_caches():
    at_once = {}
    for name, size in [("Ti/16", 224), ("B/16", 224), ("B/16", 384), ("Ti/16", 32), ("R50x1", 224)]:
        at_once[name, size] = TorchEngine(vitrail.create(name, image_size=size, num_classes=3)).batch_size
    assert at_once == {("Ti/16", 224): 5, ("B/16", 224): 5, ("B/16", 384): 1, ("Ti/16", 32): 16, ("R50x1", 224): 16}


def test_without_a_batch_size_it_is_the_engine_s(engines):
    for engine in engines.values():
        assert Predictor(engine).batch_size == engine.batch_size
        assert Predictor(engine, 3).batch_size == 3


def test_many_threads_get_the_answers_of_one(model, exported):
    images = [encoded(place) for place in range(30)]
    alone = Predictor(TorchEngine(model)).predict(images)
    for engine in (OnnxEngine(exported, workers=3), OpenVinoEngine(exported, workers=3), TorchEngine(model, workers=3)):
        for ours, theirs in zip(Predictor(engine, 2).predict(images), alone, strict=True):
            assert [guess.label for guess in ours.top] == [guess.label for guess in theirs.top]
            np.testing.assert_allclose(
                [guess.score for guess in ours.top], [guess.score for guess in theirs.top], atol=1e-5
            )


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_an_exported_model_predicts_without_importing_torch(exported, tmp_path, engine):
    (tmp_path / "photo.png").write_bytes(encoded(1))
    arguments = ["predict", str(exported), str(tmp_path / "photo.png"), "--engine", engine, "--json"]
    code = f"import sys; from vitrail.cli import main; main({arguments!r}); assert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)[0]["error"] is None


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_missing_package_is_a_sentence_with_the_remedy(exported, bundle, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    for source in (exported, bundle):
        with pytest.raises(UserError, match=rf'{name} is not installed: pip install "vitrail\[export\]"'):
            open_engine(source, name)


def test_models_and_engines_that_do_not_go_together_are_refused(exported, tmp_path):
    with pytest.raises(UserError, match="--engine torch cannot run"):
        open_engine(exported, "torch")
    with pytest.raises(UserError, match="there are auto, torch, onnxruntime, openvino"):
        open_engine(exported, "tensorrt")
    with pytest.raises(UserError, match=r"reading one can run code in it, so it is not opened here"):
        open_engine(tmp_path / "model.pt2")
    with pytest.raises(UserError, match="an exported model is fixed"):
        open_engine(exported, loading=Loading(image_size=64))
    with pytest.raises(UserError, match="there is no such file"):
        open_engine(tmp_path / "nowhere.onnx")


def test_files_that_are_no_model_of_ours_are_refused(exported, tmp_path):
    foreign = onnx.load(exported)
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    for engine in ("onnxruntime", "openvino"):
        with pytest.raises(UserError, match="make the file with vitrail export"):
            open_engine(tmp_path / "foreign.onnx", engine)
    (tmp_path / "cut.onnx").write_bytes(exported.read_bytes()[:-5000])
    (tmp_path / "text.onnx").write_text("hello")
    (tmp_path / "text.xml").write_text("hello")
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("cut.onnx", "text.onnx", "text.xml", "empty.onnx"):
        with pytest.raises(UserError, match=name):
            open_engine(tmp_path / name)


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_reading_facts_survives_any_bytes(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.onnx"
    path.write_bytes(content)
    with pytest.raises(UserError):
        read_onnx_facts(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200)
@given(
    st.sampled_from(["format", "model", "preprocessing", "label_names", "label_descriptions", "changes"]), json_values
)
def test_facts_with_a_damaged_part_are_refused_or_read(model, field, value):
    document = {**json.loads(ExportMetadata.of(model.config, model.card).to_text()), field: value}
    try:
        ExportMetadata.from_text(Path("x.onnx"), json.dumps(document))
    except UserError as error:
        assert "x.onnx" in str(error) or "cannot be read" in str(error) or "has no field" in str(error)


def test_facts_are_read_back_as_they_were(model, exported):
    facts = ExportMetadata.of(model.config, model.card, int8="dynamic")
    assert ExportMetadata.from_text(Path("x"), facts.to_text()) == facts
    document = onnx.load(exported)
    document.metadata_props.insert(0, onnx.StringStringEntryProto(key="other", value="thing"))
    assert {entry.key for entry in document.metadata_props} == {KEY, "other"}
    onnx.save(document, exported.with_name("two.onnx"))
    assert read_onnx_facts(exported.with_name("two.onnx")).label_names == CLASSES


def test_auto_measures_once_and_remembers_beside_the_model(bundle, monkeypatch):
    said: list[str] = []
    first = open_engine(bundle, "auto", say=said.append)
    assert any("is the fastest here" in line for line in said)
    folder = bundle.with_name(".bundle.engines")
    choices = json.loads((folder / CHOICES).read_text())
    (entry,) = choices.values()
    assert set(entry["images_per_second"]) == {"torch", "onnxruntime", "openvino"}
    assert first.name == max(entry["images_per_second"], key=entry["images_per_second"].__getitem__)
    assert sorted(each.name for each in bundle.iterdir()) == ["SHA256SUMS", "config.json", "model.safetensors"]

    monkeypatch.setattr(engine_selection, "measure_engines", lambda _: pytest.fail("it was measured again"))
    monkeypatch.setattr("vitrail.inference.export.export", lambda *_, **__: pytest.fail("it was exported again"))
    ((key, _),) = choices.items()
    for name in ("torch", "onnxruntime", "openvino"):
        (folder / CHOICES).write_text(json.dumps({key: {"engine": name}}))
        assert open_engine(bundle).name == name
        assert open_engine(bundle, "auto").name == name


def test_a_choice_is_for_these_weights_on_this_machine(bundle, monkeypatch):
    memory = Memory.beside(bundle, Loading())
    memory.remember(2, "openvino", {"openvino": 9.0})
    assert memory.recall(2) == "openvino"
    assert memory.recall(1) is None
    assert Memory.beside(bundle, Loading(image_size=64)).recall(2) is None
    monkeypatch.setattr(engine_selection, "processor_name", lambda: "another one")
    assert memory.recall(2) is None
    monkeypatch.undo()
    (bundle / "config.json").write_text((bundle / "config.json").read_text() + "\n")
    assert Memory.beside(bundle, Loading()).recall(2) is None


def test_an_export_is_kept_for_its_weights_labels_and_size_and_a_killed_one_is_swept_away(
    bundle, model, tmp_path, monkeypatch
):
    def written(_, path: Path, **__) -> Any:
        path.write_bytes(b"")
        return SimpleNamespace(files=(path,))

    monkeypatch.setattr("vitrail.inference.export.export", written)
    labels = tmp_path / "labels.txt"

    def made(**options) -> bool:
        """Whether it had to be exported."""
        said = []
        Memory.beside(bundle, Loading(**options)).exported(model, said.append)
        return bool(said)

    labels.write_text("a\nb\n")
    assert [made(labels=labels), made(), made(image_size=64)] == [True] * 3
    assert [made(labels=labels), made(), made(image_size=64)] == [False] * 3
    labels.write_text("a\nc\n")
    assert [made(labels=labels), made()] == [True, False]
    folder = Memory.beside(bundle, Loading()).folder
    for name, age in (("killed", 7200), ("under way", 0)):
        (folder / f".0123.onnx.{name}").mkdir()
        os.utime(folder / f".0123.onnx.{name}", (time.time() - age,) * 2)
    (bundle / "config.json").write_text((bundle / "config.json").read_text() + "\n")
    assert [made(), made()] == [True, False]
    assert [each.suffix for each in sorted(folder.iterdir())] == [".under way", ".onnx"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": 1}', b"\xff"])
def test_a_damaged_memory_is_forgotten(bundle, content):
    memory = Memory.beside(bundle, Loading())
    memory.remember(1, "torch", {"torch": 1.0})
    (memory.folder / CHOICES).write_bytes(content)
    assert memory.recall(1) is None
    memory.remember(1, "torch", {"torch": 1.0})
    assert memory.recall(1) == "torch"


def test_auto_works_where_nothing_can_be_written(bundle):
    bundle.with_name(".bundle.engines").write_text("a file where the folder would be")
    said: list[str] = []
    engine = open_engine(bundle, "auto", say=said.append)
    assert engine.name in ("torch", "onnxruntime", "openvino")
    assert not [line for line in said if "left out" in line]


def test_auto_leaves_out_what_is_not_installed(bundle, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(sys.modules, "openvino", None)
    said: list[str] = []
    assert open_engine(bundle, "auto", say=said.append).name == "torch"
    assert sum("left out" in line for line in said) == 2


def test_without_a_name_few_pictures_run_on_torch(bundle):
    assert open_engine(bundle).name == "torch"
    assert not bundle.with_name(".bundle.engines").exists()


def test_measuring_takes_about_as_long_as_it_says(engines):
    speeds = measure_engines({name: engines[name] for name in ("torch", "onnxruntime")}, seconds=0.1)
    assert all(speed > 0 for speed in speeds.values())


def test_features_of_a_resnet_have_their_width():
    config = replace(toy().config, family="resnet", stages=(1, 1), stem_width=32, positions="none")
    assert ExportMetadata.of(config, described(toy()).card).features_width == 32 * 8


@pytest.mark.slow
@pytest.mark.assets
def test_every_engine_agrees_on_the_sample_photos(assets, tmp_path):
    """Real weights, 500 photos: the same best class from every engine, and logits within 1e-4."""
    real = vitrail.load(assets / "deit-ti16.safetensors", preprocessing="imagenet")
    path = export(real, tmp_path / "ti.onnx").files[0]
    engines = [TorchEngine(real), OnnxEngine(path), OpenVinoEngine(path)]
    paths = sorted((assets / "imagenet-sample").rglob("*.JPEG"))
    assert len(paths) == 500
    best = [[each.top[0].label for each in Predictor(engine, 8).predict(paths, top=1)] for engine in engines]
    assert best[0] == best[1] == best[2]
    images = pictures(real, 8)
    for batch in range(1, 9):
        logits = [engine.outputs(images[:batch].numpy()) for engine in engines]
        assert max(np.abs(each - logits[0]).max() for each in logits) <= 1e-4
