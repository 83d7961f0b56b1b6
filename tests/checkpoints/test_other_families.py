"""A foreign model loads to its own library's numbers or is refused by its name; what a bare file cannot say is said."""

import argparse
import json

import pytest
import torch
from safetensors.torch import save_file

import vitrail
from tests.checkpoints import families
from tests.conftest import pictures, randomised, toy
from vitrail.checkpoints import architectures
from vitrail.checkpoints.convert import convert
from vitrail.errors import UserError
from vitrail.models.build import create

QUICK = [
    "vit_base_patch16_rpn_224,folder",
    "vit_base_patch16_rpn_224,file",
    "vit_base_patch16_gap_224,folder",
    "vit_base_patch16_gap_224,file",
    "vit_so400m_patch14_siglip_gap_224,folder",
    "vit_gigantic_patch14_224,folder",
    "vit_giant_patch14_224,folder",
    "test_vit,folder",
    "test_vit2,folder",
    "test_vit,file",
    "test_vit2,file",
    "vit_srelpos_small_patch16_224,folder",
    "vit_srelpos_small_patch16_224,file",
    "vit_tiny_patch16_224,folder",
    "vit_tiny_patch16_224,file",
    "deit_small_distilled_patch16_224,folder",
    "vit_base_patch32_siglip_gap_256,folder",
    "vit_giant_patch14_dinov2,folder",
    "vit_base_patch16_clip_224,file",
    "samvit_base_patch16,file",
    "vit_small_plus_patch16_dinov3,folder",
    "vit_small_plus_patch16_dinov3,file",
    "mobilevit_xxs,file",
    "ViTModel,folder",
    "ViTModel,file",
    "ViTForMaskedImageModeling,folder",
    "DeiTModel,folder",
    "Dinov2Model,folder",
    "IJepaModel,folder",
    "CLIPVisionModel,folder",
    "SiglipVisionModel,folder",
    "BeitModel,folder",
    "Dinov2Model,file",
    "IJepaModel,file",
    "CLIPVisionModel,file",
]


def check(row: families.Row, folder) -> None:
    """The row's outcome is the committed one; of a difference the table has no place for."""
    assert families.outcome(row, folder) == families.committed()[row.label]


@pytest.mark.parametrize("row", [row for row in families.rows() if f"{row.name},{row.how}" in QUICK],
                         ids=lambda row: row.label)  # fmt: skip
def test_the_table_is_true(peers, tmp_path, row):
    check(row, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in families.rows() if f"{row.name},{row.how}" not in QUICK],
                         ids=lambda row: row.label)  # fmt: skip
def test_the_rest_of_the_table_is_true(peers, tmp_path, row):
    check(row, tmp_path)


def test_the_table_is_whole():
    table, rows = families.committed(), families.rows()
    assert list(table) == [row.label for row in rows]
    assert all(text == "equal" or text.startswith("refused: ") for text in table.values())
    assert len({row.name for row in rows if families.is_timm(row)}) >= 60
    assert len({row.name for row in rows if not families.is_timm(row)}) >= 16


@pytest.mark.slow
@pytest.mark.parametrize("name", architectures.ARCHITECTURE_SIZES)
def test_what_is_known_of_timms_architectures_is_what_timm_builds(peers, name):
    with torch.device("meta"):
        theirs = peers.timm.create_model(name)
    facts = architectures.timm_fields({"architecture": name}, known=False)
    block = theirs.blocks[0]
    activation = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "SiLU": "swiglu"}[type(block.mlp.act).__name__]
    assert type(block).__name__ == "Block"
    assert (theirs.embed_dim, len(theirs.blocks), block.attn.num_heads) == (
        facts["width"], facts["depth"], facts["num_heads"],
    )  # fmt: skip
    assert (block.norm1.eps, activation) == (facts["norm_eps"], facts["activation"])
    assert architectures.POOLING[theirs.global_pool] == facts["pooling"]


def timm_folder(tmp_path, **changes):
    """A folder for timm of a toy model, its config.json changed."""
    vitrail.save(toy(), tmp_path / "bundle")
    convert(tmp_path / "bundle", tmp_path / "timm", "timm", check=False)
    document = json.loads((tmp_path / "timm/config.json").read_text())
    for name, value in changes.items():
        document[name] = {**document[name], **value} if isinstance(value, dict) else value
    (tmp_path / "timm/config.json").write_text(json.dumps(document))
    return tmp_path / "timm"


def test_an_architecture_that_is_not_known_is_refused_by_name_unless_the_user_names_the_model(tmp_path):
    folder = timm_folder(tmp_path, architecture="vit_base_patch16_gap_384")
    with pytest.raises(UserError, match=r"'vit_base_patch16_gap_384'.*--model"):
        vitrail.load(folder)
    assert vitrail.load(folder, model="num_heads=4").config.num_heads == 4
    folder = timm_folder(tmp_path / "again", architecture="vit_base_patch16_rpn_224")
    with pytest.raises(UserError, match="post-norm"):
        vitrail.load(folder, model="num_heads=4")


@pytest.mark.parametrize(("changes", "words"), [
    ({"model_args": {"qk_norm": True}}, "qk_norm"), ({"model_args": {"embed_dim": 64}}, "width 32.*says 64"),
    ({"model_args": {"depth": 2}}, "depth 3.*says 2"), ({"model_args": {"pre_norm": True}}, "pre_norm"),
    ({"model_args": {"global_pool": "map"}}, "is 'map'"), ({"model_args": {"global_pool": ""}}, "global_pool"),
    ({"model_args": {"what": 1}}, "'what'"), ({"num_classes": 3}, "num_classes 7.*says 3"),
    ({"model_args": {"img_size": [64, 64]}}, "64 patches"),
], ids=str)  # fmt: skip
def test_a_timm_folder_that_contradicts_its_tensors_is_refused(tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        vitrail.load(timm_folder(tmp_path, **changes))


@pytest.mark.parametrize(("facts", "words"), [
    ({"hidden_size": 64}, "width"), ({"num_hidden_layers": 2}, "depth"), ({"qkv_bias": False}, "qkv_bias"),
    ({"image_size": 64}, "64 patches"), ({"model_type": "vit_new"}, "'vit_new'"), ({"model_type": "deit"}, "DeiT"),
], ids=str)  # fmt: skip
def test_a_hugging_face_folder_that_contradicts_its_tensors_is_refused(tmp_path, facts, words):
    vitrail.save(toy(), tmp_path / "bundle")
    convert(tmp_path / "bundle", tmp_path / "hf", "huggingface", check=False)
    document = json.loads((tmp_path / "hf/config.json").read_text())
    (tmp_path / "hf/config.json").write_text(json.dumps({**document, **facts}))
    with pytest.raises(UserError, match=words):
        vitrail.load(tmp_path / "hf")


def assumptions(model) -> list[str]:
    return [note for note in model.card.notes if note.startswith("assumed")]


def test_a_bare_file_says_once_what_was_assumed_and_fields_settle_it(tmp_path):
    model = randomised(create("Ti/16", depth=1, image_size=32, num_classes=4, activation="gelu_tanh", num_heads=6))
    save_file(model.state_dict(), tmp_path / "bare.safetensors")
    (line,) = assumptions(vitrail.load(tmp_path / "bare.safetensors"))
    for word in ("3 heads", "exact GELU", "pooling class", "eps 1e-06", "--model"):
        assert word in line
    told = "num_heads=6,activation=gelu_tanh,pooling=class,norm_eps=1e-6"
    again = vitrail.load(tmp_path / "bare.safetensors", model=told)
    assert not assumptions(again)
    with torch.no_grad():
        assert (again(pictures(model)) - model(pictures(model))).abs().max() <= 1e-5


def test_a_file_without_positions_is_refused_unless_it_is_said_to_have_none(tmp_path):
    model = toy(positions="none")
    save_file(model.state_dict(), tmp_path / "bare.safetensors")
    with pytest.raises(UserError, match="positions=none"):
        vitrail.load(tmp_path / "bare.safetensors", model="num_heads=4")
    assert vitrail.load(tmp_path / "bare.safetensors", model="num_heads=4,positions=none").config.positions == "none"


@pytest.mark.parametrize("text", ["num_heads=x", "colour=red", "num_heads=4,num_heads=4", "pooling=best", "B/16,"])
def test_fields_of_the_model_are_checked(tmp_path, text):
    save_file(toy().state_dict(), tmp_path / "bare.safetensors")
    with pytest.raises(UserError, match="--model"):
        vitrail.load(tmp_path / "bare.safetensors", model=text)


@pytest.mark.parametrize("name", ["shared_rel_pos.mlp.fc1.weight", "rope.freqs", "blocks.0.attn.temperature", "neck.0"])
def test_a_tensor_that_nothing_reads_is_an_error_in_and_beside_the_layers(tmp_path, name):
    save_file({**toy().state_dict(), name: torch.zeros(3)}, tmp_path / "bare.safetensors")
    with pytest.raises(UserError, match=name.split(".")[0]):
        vitrail.load(tmp_path / "bare.safetensors", model="num_heads=4")


def two(pair: tuple[str, str], nested: bool):
    raw, average = (randomised(create("Ti/16", depth=1, image_size=32, num_classes=4), seed) for seed in (1, 2))
    states = dict(zip(pair, (raw.state_dict(), average.state_dict()), strict=True))
    flat = {f"{owner}.{name}": tensor for owner, state in states.items() for name, tensor in state.items()}
    return raw, average, states if nested else {"model": flat}


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("pair", [("state_dict", "state_dict_ema"), ("model", "model_ema"), ("student", "teacher")])
def test_of_weights_and_their_average_the_average_is_taken_and_a_flag_chooses(tmp_path, pair, nested):
    raw, average, document = two(pair, nested)
    path = tmp_path / "run.pth"
    torch.save({**document, "args": argparse.Namespace(lr=1), "epoch": 3}, path)
    default = vitrail.load(path)
    assert torch.equal(default.head.weight, average.head.weight)
    assert any(pair[1] in note and "--weights-from raw" in note for note in default.card.notes)
    assert torch.equal(vitrail.load(path, weights_from="average").head.weight, average.head.weight)
    assert torch.equal(vitrail.load(path, weights_from="raw").head.weight, raw.head.weight)


def test_weights_from_is_refused_where_there_is_one_set(tmp_path):
    save_file(toy().state_dict(), tmp_path / "bare.safetensors")
    vitrail.save(toy(), tmp_path / "bundle")
    for source in ("bare.safetensors", "bundle"):
        with pytest.raises(UserError, match="--weights-from"):
            vitrail.load(tmp_path / source, model="num_heads=4" if "bare" in source else None, weights_from="raw")
