"""Token merging: what it computes, what it leaves alone, and that it exports."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vitrail
from tests.conftest import pictures, toy
from vitrail import UserError
from vitrail.inference.engines.onnxruntime import OnnxEngine
from vitrail.inference.export import export
from vitrail.inference.token_merging import average_matched, deal, match, merge_map, merged, schedule
from vitrail.models.attention import Recorder
from vitrail.models.build import create
from vitrail.models.vit import ViT

KINDS = {
    "class": {},
    "average": {"pooling": "average", "class_token": False},
    "average, class token": {"pooling": "average"},
    "norm after pooling": {"pooling": "average", "norm_after_pooling": True},
    "distilled": {"distillation_token": True},
    "registers, LayerScale, SwiGLU": {"registers": 3, "layer_scale": 0.1, "activation": "swiglu"},
    "registers, average, LayerScale": {"registers": 2, "layer_scale": 0.1, "pooling": "average"},
    "no qkv bias, sincos": {"qkv_bias": False, "positions": "sincos"},
    "tanh layer": {"representation_size": 24},
}


SLOW = pytest.mark.slow


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_merging_none_is_the_plain_model_bit_for_bit(kind):
    model = toy(**KINDS[kind])
    images = pictures(model, 3)
    same = merged(model, 0)
    assert torch.equal(same(images), model(images))
    assert torch.equal(same.features(images), model.features(images))
    assert torch.equal(same.encode(same.embed(images)), model.encode(model.embed(images)))


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_it_computes_what_the_published_algorithm_says(kind):
    model = toy(**KINDS[kind]).double()
    assert isinstance(model, ViT)
    images = pictures(model, 2).double()
    expected = np.stack([by_loops(model, image, (3, 0, 4)) for image in images])
    np.testing.assert_allclose(merged(model, (3, 0, 4))(images).numpy(), expected, atol=1e-10)


def by_loops(model: ViT, image: torch.Tensor, counts: tuple[int, ...]) -> np.ndarray:
    """Token merging as the paper describes it, one token and one pair at a time."""
    config, prefix = model.config, model.config.prefix_tokens
    tokens = [row.numpy() for row in model.embed(image[None])[0]]
    sizes = [1] * len(tokens)
    for block, r in zip(model.blocks, counts, strict=True):
        normed = block.norm1(torch.tensor(np.stack(tokens)))
        q, k, v = (part.numpy() for part in block.attn.qkv(normed).unflatten(1, (3, config.num_heads, -1)).unbind(1))
        mixed = np.zeros_like(v)
        for head in range(config.num_heads):
            for here in range(len(tokens)):
                scores = [q[here, head] @ k[there, head] / q.shape[-1] ** 0.5 for there in range(len(tokens))]
                weights = np.array([size * np.exp(score) for size, score in zip(sizes, scores, strict=True)])
                mixed[here, head] = sum(w * v[j, head] for j, w in enumerate(weights / weights.sum()))
        attended = block.ls1(block.attn.proj(torch.tensor(mixed).flatten(1))).numpy()
        tokens = [token + change for token, change in zip(tokens, attended, strict=True)]
        tokens, sizes = merge_by_loops(tokens, sizes, k.mean(axis=1), r, prefix)
        stacked = torch.tensor(np.stack(tokens))
        tokens = list((stacked + block.ls2(block.mlp(block.norm2(stacked)))).numpy())
    final = model.norm(torch.tensor(np.stack(tokens)))
    if config.pooling == "class":
        pooled = final[0]
    else:
        patches = [size * final[prefix + j] for j, size in enumerate(sizes[prefix:])]
        pooled = torch.stack(patches).sum(dim=0) / sum(sizes[prefix:])
    logits = model.head(model.pre_logits(model.fc_norm(pooled)))
    if model.head_dist is not None:
        logits = (logits + model.head_dist(final[1])) / 2
    return logits.numpy()


def merge_by_loops(tokens, sizes, keys, r, prefix):
    first = [place for place in range(prefix, len(tokens)) if place % 2 == 0]  # every other token, of all
    second = [place for place in range(prefix, len(tokens)) if place % 2 == 1]
    edges = []
    for here in first:
        cosines = [keys[here] @ keys[j] / np.linalg.norm(keys[here]) / np.linalg.norm(keys[j]) for j in second]
        edges.append((max(cosines), here, second[int(np.argmax(cosines))]))
    chosen = sorted(edges, reverse=True)[:r]
    totals = [size * token for size, token in zip(sizes, tokens, strict=True)]
    sizes = list(sizes)
    for _, source, target in chosen:
        totals[target] = totals[target] + totals[source]
        sizes[target] += sizes[source]
    gone = {source for _, source, _ in chosen}
    order = [*range(prefix), *(place for place in first if place not in gone), *second]
    if r == 0:
        order = list(range(len(tokens)))
    return [totals[place] / sizes[place] for place in order], [sizes[place] for place in order]


@pytest.mark.parametrize("kind", ["class", "average", "distilled", "registers, average, LayerScale"])
@torch.inference_mode()
def test_merging_patches_that_are_alike_changes_nothing(kind):
    """Equal patches stay equal through the layers, so one token that counts twice stands for both exactly."""
    model = toy(positions="none", **KINDS[kind])
    images = pictures(model, 2)
    twice = images.unflatten(3, (2, 2, 8))[:, :, :, :, :1].expand(-1, -1, -1, -1, 2, -1).flatten(3)
    fewer = merged(model, (8, 0, 0))
    assert fewer.encode(fewer.embed(twice)).shape[1] == model.config.tokens - 8
    torch.testing.assert_close(fewer(twice), model(twice), atol=2e-5, rtol=0)
    assert (fewer(images) - model(images)).abs().max() > 1e-3, "patches that differ do make a difference"


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_every_patch_is_in_one_token_and_prefix_tokens_stay_alone(data):
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    model = toy(**KINDS[kind])
    assert isinstance(model, ViT)
    counts = data.draw(st.lists(st.integers(0, 9), min_size=3, max_size=3))
    fewer, images = merged(model, counts), pictures(model, 2)
    with torch.inference_mode():
        tokens, sizes = fewer.merge(fewer.embed(images))
        groups = merge_map(fewer, images)
    prefix = model.config.prefix_tokens
    assert tokens.shape[1] == model.config.tokens - sum(fewer.schedule)
    if sizes is None:
        assert sum(fewer.schedule) == 0
        sizes = torch.ones_like(tokens[:, :, :1])
    assert (sizes[:, :prefix] == 1).all()
    assert (sizes[:, prefix:].sum(dim=1) == 16).all()
    for own, counted in zip(groups, sizes[:, prefix:, 0], strict=True):
        assert own.shape == model.config.grid
        assert torch.equal(own.flatten().bincount(minlength=len(counted)), counted.long())


def test_the_map_names_the_patches_that_were_averaged():
    model = toy(width=16, depth=1, num_heads=1, mlp_dim=16)
    assert isinstance(model, ViT)
    images = pictures(model, 1)
    fewer = merged(model, 5)
    matches = []
    tokens = model.embed(images)
    fewer.merge(tokens, matches=matches)
    joined, sizes = average_matched(tokens, None, matches[0], 1)
    groups = merge_map(fewer, images)[0].flatten()
    for number in range(11):
        together = tokens[0, 1:][groups == number]
        torch.testing.assert_close(joined[0, 1 + number], together.mean(dim=0))
        assert sizes[0, 1 + number, 0] == len(together)


def test_the_nearest_pairs_go_first():
    first = torch.nn.functional.normalize(torch.tensor([[[1.0, 0.0], [1.0, 0.9], [0.0, 1.0], [-1.0, 0.1]]]), dim=-1)
    second = torch.nn.functional.normalize(torch.tensor([[[1.0, 1.0], [0.1, 1.0], [1.0, 0.3]]]), dim=-1)
    found = match(first, second, 2)
    assert found.sources.tolist() == [[1, 2]]
    assert found.targets.tolist() == [[0, 1]]
    assert found.kept.tolist() == [[0, 3]]


@pytest.mark.parametrize(("prefix", "first"), [(0, [0, 2, 4]), (1, [2, 4]), (2, [2, 4]), (5, [])])
def test_every_other_token_of_all_is_in_the_first_hand(prefix, first):
    hands = deal(torch.arange(6)[None], prefix)
    assert hands[0][0].tolist() == first
    assert sorted([*hands[0][0].tolist(), *hands[1][0].tolist()]) == list(range(prefix, 6))


def test_weights_are_shared_not_copied():
    model = toy()
    fewer = merged(model, 2)
    assert [name for name, _ in fewer.named_parameters()] == [name for name, _ in model.named_parameters()]
    pairs = zip(fewer.parameters(), model.parameters(), strict=True)
    assert all(ours is theirs for ours, theirs in pairs)
    fewer.resize((48, 32))
    assert model(pictures(model)).shape == (2, 7), "resizing one leaves the other as it was"


def test_attention_can_be_recorded_and_shrinks():
    model = toy(registers=1)
    fewer, record = merged(model, 3), Recorder()
    fewer.encode(fewer.embed(pictures(model)), record=record)
    assert [record.attention[layer].shape[-1] for layer in range(3)] == [18, 15, 12]
    assert [record.hidden[layer].shape[1] for layer in range(3)] == [15, 12, 9]
    torch.testing.assert_close(record.attention[2].sum(dim=-1), torch.ones(2, 4, 12))


def test_a_number_is_cut_at_half_of_what_is_left_and_a_list_must_fit():
    config = toy().config
    assert schedule(config, 5) == (5, 5, 3)
    assert schedule(config, 100) == (8, 4, 2)
    assert schedule(config, [1, 0, 7]) == (1, 0, 7)
    with pytest.raises(UserError, match=r"2 numbers.*3 layers"):
        schedule(config, [1, 2])
    with pytest.raises(UserError, match="-1"):
        schedule(config, -1)


@pytest.mark.parametrize(("fields", "words"), [
    ({"attention": "axial", "class_token": False, "pooling": "average"}, "axial"),
    ({"positions": "relative"}, "relative"),
    ({"positions_at": "every_layer"}, "every layer"),
    ({"positions_at": "every_layer_shared"}, "every layer"),
    ({"stages": (1,), "stem_width": 32, "patch_size": 2}, "hybrid"),
])  # fmt: skip
def test_what_cannot_merge_says_so_in_a_sentence(fields, words):
    with pytest.raises(UserError, match=f"token merging.*{words}"):
        merged(toy(**fields), 2)


def test_a_resnet_says_so_too():
    with pytest.raises(UserError, match="ResNet has no tokens"):
        merged(create("BiT-R50x1", stages=(1, 1), stem_width=32, num_classes=3, image_size=32), 2)


@pytest.mark.parametrize("kind", [kind if "average, L" in kind else pytest.param(kind, marks=SLOW) for kind in KINDS])
def test_a_merged_model_exports_and_agrees_with_torch_at_any_batch(kind, tmp_path):
    model = toy(**KINDS[kind], depth=2)  # the second layer attends to what the first merged
    fewer = merged(model, 3)
    engine = OnnxEngine(export(fewer, tmp_path / "merged.onnx", changes={"merge_tokens": 3}).files[0])
    assert engine.facts.changes == {"merge_tokens": 3}
    for batch in (1, 2, 5, 8):
        images = pictures(model, batch, seed=batch)
        with torch.inference_mode():
            np.testing.assert_allclose(engine.outputs(images.numpy()), fewer(images).numpy(), atol=1e-4)
            np.testing.assert_allclose(engine.features(images.numpy()), fewer.features(images).numpy(), atol=1e-4)


@pytest.mark.slow
@pytest.mark.assets
@pytest.mark.parametrize(("r", "least"), [(8, 341), (12, 336)])
def test_real_weights_lose_little(assets, r, least):
    """Of 500 photos the plain model has 346 right."""
    from vitrail.data import match_classes, open_source
    from vitrail.data.loader import EvaluationLoader
    from vitrail.evaluation.measure import measure
    from vitrail.tasks.classification.meter import Accuracy

    model = vitrail.load(assets / "deit-ti16.safetensors", labels=assets / "imagenet-labels.json")
    source = open_source(str(assets / "imagenet-sample"))
    mapping = match_classes(model.card.label_names, source.classes, subset=True)
    assert model.card.preprocessing is not None
    loader = EvaluationLoader(source.split("all"), model.card.preprocessing, batch_size=20)
    found = measure(merged(model, r), loader, Accuracy(model.card.meaning, mapping), torch.device("cpu"))
    assert found.n == 500
    assert found.top1 >= least
