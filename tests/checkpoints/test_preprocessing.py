"""--preprocessing: names, single fields, and both; whatever else is typed is refused in a sentence. Hugging Face's
files say the same to its own processor."""

import json
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import vitrail
from tests.conftest import toy
from vitrail.checkpoints import huggingface
from vitrail.checkpoints.preprocessing import FIELDS, NAMED, assumed, requested
from vitrail.config import IMAGENET_MEAN, IMAGENET_STD, ModelConfig, Preprocessing
from vitrail.config.preprocessing import Resample
from vitrail.data.transforms import EvaluationTransform
from vitrail.errors import UserError

COLOUR = ModelConfig(image_size=32, patch_size=8)
OWN = Preprocessing(image_size=32, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), resample="box", crop_fraction=0.7)


@pytest.mark.parametrize(("text", "expected"), [
    ("crop_fraction=0.875", replace(OWN, crop_fraction=0.875)),
    ("crop-fraction = 0.875, crop=squash", replace(OWN, crop_fraction=0.875, crop="squash")),
    ("mean=0.48:0.46:0.41,std=0.27", replace(OWN, mean=(0.48, 0.46, 0.41), std=(0.27, 0.27, 0.27))),
    ("half", Preprocessing(image_size=32)),
    ("half,resample=bilinear", Preprocessing(image_size=32, resample="bilinear")),
])  # fmt: skip
def test_names_and_fields(text, expected):
    assert requested(text, COLOUR, OWN) == expected


def test_fields_change_what_the_weights_carry_or_what_is_assumed_of_them(tmp_path):
    model = toy()
    model.card.preprocessing = OWN
    vitrail.save(model, tmp_path / "bundle")
    loaded = vitrail.load(tmp_path / "bundle", preprocessing="crop=squash")
    assert loaded.card.preprocessing == replace(OWN, crop="squash")
    vitrail.convert(tmp_path / "bundle", tmp_path / "bare.safetensors", "timm")
    bare = vitrail.load(tmp_path / "bare.safetensors", preprocessing="crop_fraction=0.875")
    assert bare.card.preprocessing == Preprocessing(32, IMAGENET_MEAN, IMAGENET_STD, crop_fraction=0.875)
    assert not any("preprocessing" in note for note in bare.card.notes), "it was said, not assumed"


@pytest.mark.parametrize(("text", "words"), [
    ("imagent", "there is no 'imagent'; there are imagenet, half"),
    ("half,imagenet", "'imagenet' is not FIELD=VALUE"),
    ("size=3", "one of the fields mean, std, crop, crop_fraction, resample"),
    ("crop_fraction=", "is not FIELD=VALUE"),
    ("crop_fraction=big", "must be numbers"),
    ("crop_fraction=nan", "must be numbers"),
    ("crop_fraction=0.1:0.2", "has 2 numbers, and 1 are needed"),
    ("crop_fraction=2", "at most 1"),
    ("mean=0.1:0.2", "has 2 numbers, and 3 are needed"),
    ("std=0", "must be above 0"),
    ("resample=quick", "choose one of bicubic"),
    ("crop=squash,crop=center", "names a field twice"),
    ("", "there is no ''"),
], ids=str)  # fmt: skip
def test_what_is_wrong_is_named(text, words):
    with pytest.raises(UserError, match=words):
        requested(text, COLOUR, OWN)


def test_imagenet_is_of_three_channels():
    grey = ModelConfig(image_size=32, patch_size=8, channels=1)
    with pytest.raises(UserError, match="the model has 1: give half"):
        requested("imagenet", grey, Preprocessing(mean=(0.5,), std=(0.5,)))
    assert requested("half,std=0.3", grey, OWN) == Preprocessing(image_size=32, mean=(0.5,), std=(0.3,))


def test_the_numbers_of_a_hugging_face_resample_are_pillows():
    for name in get_args(Resample):
        number = int(Image.Resampling[name.upper()])
        document = huggingface.preprocessor_json(replace(OWN, resample=name))
        assert document["resample"] == number
        assert huggingface.preprocessing_from({"resample": number}).resample == name
    assert huggingface.preprocessing_from({}).resample == "bilinear", "as ViTImageProcessor's own default"


@pytest.mark.parametrize("crop", ["squash", "center"])
@pytest.mark.parametrize("resample", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_pixels_are_those_of_hugging_faces_own_processor(peers, tmp_path, resample, crop):
    """What we write their processor reads, and what it then writes we read: the same numbers each way."""
    noise = np.random.default_rng(0).integers(0, 255, (80, 60, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((61, 87), Image.Resampling.BICUBIC)
    fraction = 0.8 if crop == "center" else 1.0
    own = Preprocessing(32, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), resample=resample, crop=crop, crop_fraction=fraction)
    document = huggingface.preprocessor_json(own)
    kind = getattr(peers.transformers, document["image_processor_type"] + "Pil")
    processor = kind(**{name: value for name, value in document.items() if name != "image_processor_type"})
    theirs = processor(picture, return_tensors="np")["pixel_values"][0]
    ours = EvaluationTransform(own)(picture).transpose(2, 0, 1) / 255
    mean, std = (np.array(values).reshape(3, 1, 1) for values in (own.mean, own.std))
    assert np.abs((ours - mean) / std - theirs).max() < 1e-5
    processor.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert huggingface.preprocessing_from(written) == own


written = st.builds(
    Preprocessing,
    image_size=st.just(32),
    mean=st.tuples(*[st.floats(-2, 2)] * 3),
    std=st.tuples(*[st.floats(0.001, 4)] * 3),
    resample=st.sampled_from(["bicubic", "bilinear", "nearest", "lanczos", "box", "hamming"]),
    crop=st.sampled_from(["center", "squash"]),
    crop_fraction=st.floats(0.01, 1),
    range=st.sampled_from([None, (0.0, 4095.0), (-1.5, 0.25)]),
)


@given(wanted=written, name=st.sampled_from(["", *NAMED]))
def test_every_preprocessing_can_be_said(wanted, name):
    def said(value) -> str:
        if value is None:
            return "dtype"
        return ":".join(map(repr, value)) if isinstance(value, tuple) else str(value)

    fields = [f"{field}={said(getattr(wanted, field))}" for field in FIELDS]
    assert requested(",".join([name, *fields] if name else fields), COLOUR, OWN) == wanted


@given(text=st.text(st.sampled_from("=,:.0159-naf half crop_std mean ë"), max_size=40))
def test_whatever_is_typed_ends_in_a_preprocessing_or_a_sentence(text):
    try:
        assert isinstance(requested(text, COLOUR, OWN), Preprocessing)
    except UserError as error:
        assert "preprocessing" in str(error)


def test_what_is_assumed_of_each_format_is_its_own_codes(peers):
    half = Preprocessing(32, resample="bilinear", crop="squash", crop_fraction=1.0)
    assert assumed("google", COLOUR)[0] == assumed("huggingface", COLOUR)[0] == half
    theirs = peers.torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1.transforms()
    ours = assumed("torchvision", COLOUR)[0]
    assert (ours.mean, ours.std) == (tuple(theirs.mean), tuple(theirs.std))
    assert ours.crop_fraction == theirs.crop_size[0] / theirs.resize_size[0]
    assert ours.resample == theirs.interpolation.value
    assert assumed("timm", COLOUR)[0] == Preprocessing(32, IMAGENET_MEAN, IMAGENET_STD, crop_fraction=0.9)
