"""Damaged, wrong and hostile files: no payload runs, each ends in a UserError, nothing is left behind."""

import argparse
import io
import json
import os
import pickle
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from tests.conftest import randomised, toy
from vitrail.checkpoints.convert import convert
from vitrail.checkpoints.google import target_rules
from vitrail.checkpoints.name_maps import write_by_rules
from vitrail.errors import UserError
from vitrail.models.build import create


class Payload:
    """Unpickled without care, this writes a file."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> dict[str, Path]:
    """One small model in every kind of file."""
    folder = tmp_path_factory.mktemp("good")
    model = randomised(create("Ti/16", depth=1, width=64, mlp_dim=64, num_heads=1, num_classes=3, image_size=32))
    state = model.state_dict()
    save_file(state, folder / "model.safetensors")
    torch.save(state, folder / "model.pth")
    arrays = {name: tensor.numpy() for name, tensor in write_by_rules(target_rules(state, model.config), state).items()}
    np.savez(folder / "model.npz", **arrays)
    vitrail.save(model, folder / "bundle")
    return {path.name: path for path in folder.iterdir()}


def outcome(path: Path, **options) -> dict[str, torch.Tensor] | UserError:
    """The tensors a file loads to, or the UserError; anything else fails the test."""
    try:
        return vitrail.load(path, **options).state_dict()
    except UserError as error:
        assert str(error).strip()
        assert "\n" not in str(error)
        return error


def same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_mutated_files(good, tmp_path):
    """Over 300 files with a flipped bit or cut short. A flip in a byte nobody reads (a time stamp in an archive, a
    space) may load, but then to the very same tensors; in a bundle even that is noticed."""
    generator = random.Random(0)
    errors = harmless = 0
    for name in ("model.safetensors", "model.npz", "model.pth"):
        content, truth = good[name].read_bytes(), outcome(good[name])
        assert isinstance(truth, dict)
        for trial in range(100):
            changed = bytearray(content)
            if trial < 30:
                changed = changed[: generator.randrange(len(content))]
            else:
                place = header_place(name, content, generator)
                changed[place] ^= 1 << generator.randrange(8)
                around = bytes(changed[max(0, place - 30) : place + 30])
            path = tmp_path / f"{trial}{good[name].suffix}"
            path.write_bytes(changed)
            result = outcome(path)
            if isinstance(result, UserError):
                errors += 1
            else:
                assert same(result, truth), f"{name}: a damaged file loaded as other weights: {around!r}"
                harmless += 1
            path.unlink()
    assert errors >= 200, f"{errors} errors, {harmless} harmless"


def header_place(name: str, content: bytes, generator: random.Random) -> int:
    """A byte of the part that describes the tensors: safetensors' JSON, or an archive's headers and pickle."""
    if name.endswith(".safetensors"):
        length = struct.unpack("<Q", content[:8])[0]
        return generator.randrange(8 + length)
    directory = content.rfind(b"PK\x01\x02")
    if generator.random() < 0.5:
        return generator.randrange(max(0, directory - 600), len(content))
    return generator.randrange(400)


def test_mutated_bundles(good, tmp_path):
    """A bundle carries its own checksums: every changed byte and every cut is noticed."""
    generator = random.Random(1)
    bundle = good["bundle"]
    for trial in range(60):
        victim = ("model.safetensors", "config.json")[trial % 2]
        folder = tmp_path / str(trial)
        folder.mkdir()
        for file in bundle.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        content = bytearray((folder / victim).read_bytes())
        if trial < 20:
            content = content[: generator.randrange(len(content))]
        else:
            content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        (folder / victim).write_bytes(content)
        result = outcome(folder)
        assert isinstance(result, UserError)
        assert victim in str(result)


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json", "SHA256SUMS"])
def test_incomplete_bundle(good, tmp_path, missing):
    for file in good["bundle"].iterdir():
        if file.name != missing:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    result = outcome(tmp_path)
    if missing == "SHA256SUMS":  # still a folder timm could have written, and read as one
        assert isinstance(result, dict)
    else:
        assert isinstance(result, UserError)


def payloads(mark: Path) -> list[object]:
    bomb = Payload(mark)
    weight = torch.zeros(2, 2)
    return [bomb, {"model": bomb}, {"a": weight, "b": bomb}, [weight, bomb], {"state_dict": {"x": bomb}}]


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".ckpt"])
def test_pickle_payloads_in_pytorch_files_never_run(tmp_path, suffix):
    mark = tmp_path / "ran"
    for number, document in enumerate(payloads(mark)):
        for legacy in (False, True):
            path = tmp_path / f"{number}{legacy}{suffix}"
            torch.save(document, path, _use_new_zipfile_serialization=not legacy)
            result = outcome(path)
            assert isinstance(result, UserError)
            assert "refused" in str(result)
        path = tmp_path / f"{number}raw{suffix}"
        path.write_bytes(pickle.dumps(document))
        assert isinstance(outcome(path), UserError)
    assert not mark.exists()


def test_pickle_payloads_in_npz_never_run(tmp_path):
    mark = tmp_path / "ran"
    array = np.empty(1, dtype=object)
    array[0] = Payload(mark)
    np.savez(tmp_path / "object.npz", **{"embedding/kernel": array})
    result = outcome(tmp_path / "object.npz")
    assert isinstance(result, UserError)
    assert "refused" in str(result)
    with zipfile.ZipFile(tmp_path / "raw.npz", "w") as archive:
        archive.writestr("embedding/kernel.npy", pickle.dumps(Payload(mark)))
    assert isinstance(outcome(tmp_path / "raw.npz"), UserError)
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("payload.pkl", pickle.dumps(Payload(mark)))
    assert isinstance(outcome(tmp_path / "other.npz"), UserError)
    assert not mark.exists()


def test_a_namespace_of_a_training_run_is_no_payload(good, tmp_path):
    """DeiT's and DINO's own checkpoints keep argparse's Namespace; they load."""
    state = torch.load(good["model.pth"], weights_only=True)
    torch.save({"model": state, "args": argparse.Namespace(lr=0.1), "epoch": 3}, tmp_path / "run.pth")
    assert isinstance(outcome(tmp_path / "run.pth"), dict)


WRONG_CONTENT = {
    "empty.safetensors": b"",
    "empty.npz": b"",
    "empty.pth": b"",
    "text.safetensors": b"not a tensor in sight",
    "text.npz": b"not a tensor in sight",
    "text.pth": b"not a tensor in sight",
    "huge-header.safetensors": struct.pack("<Q", 2**62) + b"{}",
    "list-header.safetensors": struct.pack("<Q", 2) + b"[]",
    "zeros.npz": b"\0" * 1000,
    "zeros.pth": b"\0" * 1000,
    "zeros.safetensors": b"\0" * 1000,
    "empty-archive.npz": b"PK\x05\x06" + b"\0" * 18,
    "empty-archive.pth": b"PK\x05\x06" + b"\0" * 18,
    "image.txt": b"hello",
}


@pytest.mark.parametrize("name", WRONG_CONTENT)
def test_files_that_are_no_checkpoint(tmp_path, name):
    (tmp_path / name).write_bytes(WRONG_CONTENT[name])
    assert isinstance(outcome(tmp_path / name), UserError)


def damaged_states(state: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Well-formed files whose tensors are wrong."""
    return {
        "a tensor missing": {k: v for k, v in state.items() if k != "blocks.0.norm1.bias"},
        "integers": {**state, "blocks.0.mlp.fc1.weight": torch.ones(64, 64, dtype=torch.int32)},
        "booleans": {**state, "norm.weight": torch.ones(64, dtype=torch.bool)},
        "a wrong width": {**state, "blocks.0.attn.qkv.weight": torch.zeros(191, 64)},
        "a scalar": {**state, "cls_token": torch.tensor(1.0)},
        "a flat projection": {**state, "patch_embed.proj.weight": torch.zeros(64 * 768)},
        "no blocks": {k: v for k, v in state.items() if not k.startswith("blocks")},
        "a gap between blocks": {k.replace("blocks.0", "blocks.3"): v for k, v in state.items()},
        "positions of no grid": {**state, "pos_embed": torch.zeros(1, 12, 64)},
        "another model": {"conv1.weight": torch.zeros(64, 3, 7, 7), "fc.weight": torch.zeros(10, 64)},
        "oblong patches": {**state, "patch_embed.proj.weight": torch.zeros(64, 3, 16, 8)},
        "a head of another width": {**state, "head.weight": torch.zeros(3, 65)},
        "two-dimensional positions": {**state, "pos_embed": torch.zeros(5, 64)},
    }


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_well_formed_files_with_wrong_tensors(good, tmp_path, suffix):
    state = load_file(good["model.safetensors"])
    for what, tensors in damaged_states(state).items():
        path = tmp_path / f"wrong{suffix}"
        if suffix == ".pth":
            torch.save(tensors, path)
        else:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
        result = outcome(path)
        assert isinstance(result, UserError), what
        assert str(path) in str(result) or "shape" in str(result), what


@pytest.mark.parametrize("name", ["embedding/kernel", "cls", "Transformer/encoder_norm/scale", "head/kernel"])
@pytest.mark.parametrize("array", [
    np.zeros((2, 2), np.int64), np.zeros(3, np.complex64), np.zeros(3, "U5"), np.zeros((0,), np.float32),
    np.array(1.5, np.float32), np.zeros((1, 2, 3, 4, 5), np.float32), np.zeros(3, "datetime64[s]"),
], ids=["integers", "complex", "text", "empty", "scalar", "five axes", "dates"])  # fmt: skip
def test_npz_with_wrong_arrays(good, tmp_path, name, array):
    with np.load(good["model.npz"], allow_pickle=False) as file:
        arrays = dict(file)
    np.savez(tmp_path / "wrong.npz", **{**arrays, name: array})
    assert isinstance(outcome(tmp_path / "wrong.npz"), UserError)


def test_an_array_that_claims_to_be_larger_than_it_is(good, tmp_path):
    """Memory is not taken on a header's word."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2**20)})
    with zipfile.ZipFile(tmp_path / "claim.npz", "w") as archive:
        archive.writestr("embedding/kernel.npy", content.getvalue())
    result = outcome(tmp_path / "claim.npz")
    assert isinstance(result, UserError)
    assert "size does not fit" in str(result)


def test_an_archive_that_unpacks_to_far_more_than_it_is(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("embedding/kernel.npy", b"\0" * 50_000_000)
    result = outcome(tmp_path / "bomb.npz")
    assert isinstance(result, UserError)
    assert "ask for 50,000,000 bytes" in str(result)


@pytest.mark.parametrize("document", [
    "[]", "{", "null", '{"vitrail": 1}', '{"vitrail": {"format": 99, "model": {}}}',
    '{"vitrail": {"format": 1, "model": {"width": "wide"}}}', '{"vitrail": {"format": 1, "model": {"depth": 1e9}}}',
    '{"vitrail": {"format": 1, "model": {"class_token": "yes"}}}', '{"vitrail": {"format": 1, "model": {"what": 1}}}',
    '{"vitrail": {"format": 1, "model": {"depth": 1000000000}}}',
    '{"vitrail": {"format": 1, "model": {"image_size": "x"}}}',
    "[" * 100_000,
], ids=range(12))  # fmt: skip
def test_hostile_configurations(good, tmp_path, document):
    """With right checksums: the configuration itself is what is wrong."""
    from vitrail.checkpoints.bundle import digest

    weights = (good["bundle"] / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(weights)
    (tmp_path / "config.json").write_text(document)
    sums = [f"{digest(tmp_path / name)}  {name}\n" for name in ("model.safetensors", "config.json")]
    (tmp_path / "SHA256SUMS").write_text("".join(sums))
    assert isinstance(outcome(tmp_path), UserError)


@pytest.mark.parametrize("facts", [
    {"num_attention_heads": 5}, {"num_attention_heads": "many"}, {"hidden_act": "relu"}, {"image_size": "big"},
    {"layer_norm_eps": 10**400}, {"layer_norm_eps": "small"}, {"image_size": [1, 2, 3]}, {"id2label": [1]},
], ids=str)  # fmt: skip
def test_hostile_huggingface_configurations(tmp_path, facts):
    model = toy()
    vitrail.save(model, tmp_path / "bundle")
    convert(tmp_path / "bundle", tmp_path / "hf", "huggingface", check=False)
    document = json.loads((tmp_path / "hf/config.json").read_text())
    (tmp_path / "hf/config.json").write_text(json.dumps({**document, **facts}))
    assert isinstance(outcome(tmp_path / "hf"), UserError)


def test_an_index_cannot_point_outside_its_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    save_file({"secret": torch.zeros(1)}, tmp_path / "secret.safetensors")
    index = {"weight_map": {"secret": "../secret.safetensors"}}
    (tmp_path / "folder/model.safetensors.index.json").write_text(json.dumps(index))
    result = outcome(tmp_path / "folder")
    assert isinstance(result, UserError)
    assert "outside" in str(result)


def test_a_failed_conversion_leaves_nothing(good, tmp_path):
    broken = tmp_path / "broken.npz"
    broken.write_bytes(good["model.npz"].read_bytes()[:2000])
    (tmp_path / "out").mkdir()
    for to, name in (("bundle", "b"), ("huggingface", "h"), ("timm", "t.safetensors"), ("google", "g.npz")):
        with pytest.raises(UserError):
            convert(broken, tmp_path / "out" / name, to)
    with pytest.raises(UserError, match="axial"):
        axial = toy(attention="axial", class_token=False, pooling="average")
        vitrail.save(axial, tmp_path / "axial")
        convert(tmp_path / "axial", tmp_path / "out" / "a.npz", "google")
    assert not list((tmp_path / "out").iterdir())


def test_a_full_disk_leaves_nothing_and_names_the_file(good, tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitrail.checkpoints.files.save_safetensors", full)
    monkeypatch.setattr("numpy.savez", full)
    for to, name in (("bundle", "b"), ("google", "g.npz"), ("timm", "t.safetensors")):
        with pytest.raises(UserError, match=rf"{name}.*No space left"):
            convert(good["bundle"], tmp_path / name, to)
    assert not list(tmp_path.iterdir())


def test_an_existing_destination_is_kept(good, tmp_path):
    (tmp_path / "taken").write_text("precious")
    with pytest.raises(UserError, match="exists already"):
        convert(good["bundle"], tmp_path / "taken")
    with pytest.raises(UserError, match="exists already"):
        vitrail.save(vitrail.load(good["bundle"]), tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "precious"
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/one.jpg").write_text("precious")
    with pytest.raises(UserError, match="holds more than a model"):
        convert(good["bundle"], tmp_path / "photos", overwrite=True)
    assert (tmp_path / "photos/one.jpg").exists()


def test_overwriting_a_bundle_replaces_it_whole(good, tmp_path):
    vitrail.save(toy(), tmp_path / "model")
    convert(good["bundle"], tmp_path / "model", overwrite=True)
    assert vitrail.load(tmp_path / "model").config == vitrail.load(good["bundle"]).config
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
