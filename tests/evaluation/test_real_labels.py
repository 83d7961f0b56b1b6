"""ImageNet-ReaL: a hand-worked example, classes by WordNet id, and files that are anything but real.json."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitrail.errors import UserError
from vitrail.evaluation import real_labels
from vitrail.evaluation.real_labels import class_numbers, image_number, read_real_labels, score


def real_file(path, labels: dict[int, list[int]]):
    """A file of 50,000 lists, empty but for the given image numbers."""
    path.write_text(json.dumps([labels.get(number, []) for number in range(1, 50_001)]))
    return path


def test_a_hand_worked_example(tmp_path):
    labels = {1: [65], 2: [970, 795], 3: [230, 231], 5: [516, 520], 50_000: [815, 816]}
    real = read_real_labels(real_file(tmp_path / "real.json", labels))
    answers = [
        ("n01751748/ILSVRC2012_val_00000001.JPEG", 65),  # right, the only label
        ("n09193705/ILSVRC2012_val_00000002.JPEG", 795),  # right, the second label
        ("n02105855/ILSVRC2012_val_00000003.JPEG", 232),  # wrong
        ("n04263257/ILSVRC2012_val_00000004.JPEG", 809),  # no label: left out
        ("n03125729/ILSVRC2012_val_00000005.JPEG", 0),  # wrong
        ("n01773797/ILSVRC2012_val_00050000.JPEG", 816),  # right
    ]
    assert score(real, range(1000), answers) == {"n": 5, "without_label": 1, "top1": 3 / 5}
    assert score(real, range(1000), answers[3:4]) == {"n": 0, "without_label": 1, "top1": None}


def test_numbers_go_by_wordnet_id_whatever_the_models_order(tmp_path):
    names = [f"n{1000 + index:08d}" for index in range(1000)]
    assert class_numbers(names) == list(range(1000))
    turned = names[::-1]
    real = read_real_labels(real_file(tmp_path / "real.json", {7: [2]}))
    place = turned.index(names[2])
    assert score(real, class_numbers(turned), [("ILSVRC2012_val_00000007.JPEG", place)])["top1"] == 1
    assert class_numbers([f"class {index}" for index in range(1000)]) == list(range(1000))
    with pytest.raises(UserError, match="1,000 classes; this one has 1,001"):
        class_numbers([str(index) for index in range(1001)])


@pytest.mark.parametrize("name", [
    "a/ILSVRC2012_val_00000293.JPEG", "ILSVRC2012_val_00000293", "val/ILSVRC2012_val_00000293_n01440764.JPEG",
    "shard-0.tar/ILSVRC2012_val_00000293.jpg",
])  # fmt: skip
def test_an_image_is_known_by_its_name(name):
    assert image_number(name) == 293


@pytest.mark.parametrize("name", [
    "cat.jpg", "ILSVRC2012_val_293.JPEG", "ILSVRC2012_val_000000293.JPEG", "ILSVRC2012_test_00000293.JPEG",
    "ILSVRC2012_val_00000000.JPEG", "ILSVRC2012_val_00050001.JPEG", "ILSVRC2012_val_00000293/cat.jpg", "",
    "xILSVRC2012_val_00000293.JPEG", "ILSVRC2012_val_٠٠٠٠٠٢٩٣.JPEG",
])  # fmt: skip
def test_another_name_is_refused(name):
    with pytest.raises(UserError):
        image_number(name)


def test_one_image_twice_is_refused(tmp_path):
    real = read_real_labels(real_file(tmp_path / "real.json", {1: [1]}))
    with pytest.raises(UserError, match="the same validation image as a/"):
        score(real, range(1000), [(f"{folder}/ILSVRC2012_val_00000001.JPEG", 1) for folder in "ab"])


@pytest.mark.parametrize(("text", "words"), [
    ("", "not valid JSON"),
    ("[" * 100_000, "not valid JSON"),
    ('{"0": [1]}', "not a dict"),
    ("[[1], [2]]", "2 entries"),
    (json.dumps([[]] * 50_001), "50,001 entries"),
    (json.dumps([[]] * 49_999 + [5]), "entry 49999 is a int"),
    (json.dumps([[True]] + [[]] * 49_999), "True"),
    (json.dumps([[1.0]] + [[]] * 49_999), "1.0"),
    (json.dumps([["1"]] + [[]] * 49_999), "'1'"),
    (json.dumps([[], [1000]] + [[]] * 49_998), "entry 1 has 1000"),
    (json.dumps([[-1]] + [[]] * 49_999), "-1"),
    (json.dumps([[[1]]] + [[]] * 49_999), "entry 0"),
    ("[[" + "9" * 5000 + "]]", "not valid JSON"),
    ("[[NaN]]" + " " * 10, "1 entries"),
])  # fmt: skip
def test_a_file_that_is_not_real_json_is_named_with_the_place(tmp_path, text, words):
    path = tmp_path / "odd.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_real_labels(path)
    assert "odd.json" in str(caught.value)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_real_labels(tmp_path / "nowhere.json")
    with pytest.raises(UserError, match="not a file"):
        read_real_labels(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe[[1]]")
    with pytest.raises(UserError, match="not UTF-8"):
        read_real_labels(tmp_path / "bytes.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(65 * 2**20)
    with pytest.raises(UserError, match="too large"):
        read_real_labels(tmp_path / "huge.json")


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(odd=values, place=st.integers(0, 9))
def test_any_entry_is_taken_whole_or_refused(tmp_path, monkeypatch, odd, place):
    monkeypatch.setattr(real_labels, "IMAGES", 10)  # the checks are the same, and 50,000 take longer
    document: list = [[]] * 10
    document[place] = odd
    path = tmp_path / "real.json"
    path.write_text(json.dumps(document))
    fine = isinstance(odd, list) and all(type(each) is int and 0 <= each < 1000 for each in odd)
    if fine:
        assert read_real_labels(path)[place] == set(odd)
    else:
        with pytest.raises(UserError, match=f"entry {place} "):
            read_real_labels(path)
