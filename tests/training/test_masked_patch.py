"""Masked patch prediction: the corruption is the paper's, the targets are what a plain loop computes, and it learns."""

import numpy as np
import pytest
import torch

from tests.training.unlabelled import settings, some_batch, trainer
from vitrail.config import MaskedPatchConfig, ModelConfig, OptimizerConfig, Preprocessing, ScheduleConfig
from vitrail.data.loader import Batch, Normaliser
from vitrail.models.build import create
from vitrail.training.objectives.masked_patch import MaskedPatch, corrupt, draw_corruption

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_10_000_draws_corrupt_half_and_of_those_80_10_10():
    """Four standard deviations of 10,000 draws of 196 patches: 98 of them corrupted each time, never 97."""
    torch.manual_seed(0)
    masked = replaced = 0
    places, offsets = torch.zeros(196), torch.zeros(196)
    for _ in range(20):
        found = draw_corruption(torch.rand(500, 196, 3), MaskedPatchConfig())
        assert found.chosen.shape == (500, 98), "exactly half of each image"
        assert all(len(set(row.tolist())) == 98 for row in found.chosen[:20]), "each once"
        assert not (found.masked & found.replaced).any()
        assert (found.others != found.chosen).all(), "another patch is never the patch itself"
        masked, replaced = masked + int(found.masked.sum()), replaced + int(found.replaced.sum())
        places += found.chosen.flatten().bincount(minlength=196)
        offsets += ((found.others - found.chosen) % 196)[found.replaced].bincount(minlength=196)
    n = 10_000 * 98
    for share, wanted in ((masked / n, 0.8), (replaced / n, 0.1), (1 - (masked + replaced) / n, 0.1)):
        assert share == pytest.approx(wanted, abs=4 * (wanted * (1 - wanted) / n) ** 0.5)
    assert (places / 10_000 - 0.5).abs().max() < 0.025, "every place alike"
    expected = replaced / 195
    assert offsets[0] == 0
    assert (offsets[1:] - expected).abs().max() < 5 * expected**0.5, "every other patch alike"


def test_embeddings_are_corrupted_as_drawn_and_the_others_stay():
    torch.manual_seed(0)
    patches, mask = torch.randn(64, 9, 5), torch.full((1, 1, 5), 7.0)
    found = draw_corruption(torch.rand(64, 9, 3), MaskedPatchConfig(fraction=0.6, masked=0.4, replaced=0.3))
    result = corrupt(patches, found, mask)
    seen = set()
    for image in range(64):
        chosen = found.chosen[image].tolist()
        for place in set(range(9)) - set(chosen):
            assert torch.equal(result[image, place], patches[image, place])
        for number, place in enumerate(chosen):
            if found.masked[image, number]:
                wanted = mask[0, 0]
            elif found.replaced[image, number]:
                wanted = patches[image, found.others[image, number]]
            else:
                wanted = patches[image, place]
            seen.add((bool(found.masked[image, number]), bool(found.replaced[image, number])))
            assert torch.equal(result[image, place], wanted)
    assert len(seen) == 3, "all three fates occurred"


def test_positions_are_added_after_the_corruption():
    """All embeddings masked: what the encoder gets differs by position alone, so nothing of the pixels is left."""
    config = settings("masked_patch", masked_patch=MaskedPatchConfig(fraction=1.0, masked=1.0, replaced=0.0))
    run = trainer(config)
    run.objective.eval()
    first, second = some_batch(seed=1), some_batch(seed=2)
    model, objective = run.model, run.objective
    grid = model.grid_of(first.images)
    found = draw_corruption(torch.rand(16, 16, 3), config.masked_patch)
    tokens = [
        model.place(corrupt(model.patch_embed(each.images), found, objective.mask_token), grid)
        for each in (first, second)
    ]
    assert torch.equal(*tokens)
    expected = objective.mask_token + model.positions(0, grid)[:, 1:]
    assert torch.allclose(tokens[0][:, 1:], expected.expand(16, -1, -1), atol=1e-6)


def brute_force(pixels: np.ndarray, patch: int, target: str) -> np.ndarray:
    """Plain loops over bytes [images, rows, columns, channels] -> classes [images, patches, predictions]."""
    images, rows, columns, channels = pixels.shape
    side = 1 if target == "mean" else 4
    result = []
    for image in range(images):
        for top in range(0, rows, patch):
            for left in range(0, columns, patch):
                for row in range(side):
                    for column in range(side):
                        first, last = row * patch // side, -(-(row + 1) * patch // side)
                        start, stop = column * patch // side, -(-(column + 1) * patch // side)
                        number = 0
                        for channel in range(channels):
                            part = pixels[image, top + first : top + last, left + start : left + stop, channel]
                            number += (int(part.astype(np.int64).sum()) // part.size >> 5) * 8**channel
                        result.append(number)
    return np.array(result).reshape(images, -1, side * side)


@pytest.mark.parametrize("target", ["mean", "small"])
@pytest.mark.parametrize(("channels", "patch"), [(3, 8), (1, 7), (3, 16), (2, 4)])
def test_targets_equal_a_brute_force_computation(target, channels, patch):
    preprocessing = Preprocessing(2 * patch, (*MEAN, 0.5)[:channels], (*STD, 0.5)[:channels])
    config = ModelConfig(
        image_size=2 * patch, channels=channels, patch_size=patch, width=8, num_heads=2, depth=1, num_classes=0
    )
    objective = MaskedPatch(MaskedPatchConfig(target=target), config, preprocessing)
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (6, 2 * patch, 2 * patch, channels), dtype=np.uint8)
    for image in (1, 2, 3):  # plain colours, among them those on the border between two classes
        pixels[image] = generator.choice([0, 31, 32, 63, 64, 127, 128, 224, 255], size=channels)
    pixels[4] //= 2
    classes = objective.classes(Normaliser(preprocessing)(pixels))
    assert classes.max() < 8**channels
    assert np.array_equal(classes.numpy(), brute_force(pixels, patch, target))


def test_the_mean_colour_has_512_classes_and_the_small_patch_16_times_as_many_outputs():
    model = ModelConfig(image_size=32, patch_size=8, width=8, num_heads=2, depth=1, num_classes=0)
    sizes = {
        target: MaskedPatch(MaskedPatchConfig(target=target), model, Preprocessing(32)).head.out_features
        for target in ("mean", "small", "pixels")
    }
    assert sizes == {"mean": 512, "small": 16 * 512, "pixels": 8 * 8 * 3}


@pytest.mark.parametrize("target", ["mean", "small", "pixels"])
def test_the_loss_is_that_of_the_corrupted_patches_alone(target):
    """With a head of zeros every class is as likely, and every pixel is predicted 0."""
    model = create(ModelConfig(image_size=8, patch_size=4, width=8, num_heads=2, depth=1, num_classes=0))
    objective = MaskedPatch(MaskedPatchConfig(target=target), model.config, Preprocessing(8))
    batch = some_batch(channels=3)
    noise = torch.rand(16, 4, 3, generator=torch.Generator().manual_seed(0))
    loss = objective(model, batch, noise).loss
    if target != "pixels":
        assert loss.item() == pytest.approx(np.log(512), rel=1e-5)
        return
    chosen = draw_corruption(noise, objective.config).chosen
    squares = []
    for image in range(16):
        for place in chosen[image].tolist():
            top, left = place // 2 * 4, place % 2 * 4
            squares.append(batch.images[image, :, top : top + 4, left : left + 4].square().mean().item())
    assert loss.item() == pytest.approx(np.mean(squares), rel=1e-5)


@pytest.mark.parametrize("target", ["mean", "small", "pixels"])
def test_one_batch_is_learned_by_heart(target):
    """With the same patches corrupted each time, each picture is told by those that are left: all is known."""
    config = settings(
        "masked_patch",
        masked_patch=MaskedPatchConfig(target=target),
        model=settings("mae").model.with_(patch_size=4),
        optimizer=OptimizerConfig("adamw", 3e-3, 0.0),
        schedule=ScheduleConfig("constant"),
    )
    run, batch = trainer(config), some_batch(count=8)
    noise = torch.rand(8, 4, 3, generator=torch.Generator().manual_seed(0))
    learned = run.objective.forward
    run.objective.forward = lambda model, part: learned(model, part, noise)
    losses = [run.step(iter([batch]))["loss"] for _ in range(220)]
    assert losses[-1] < 0.02 < 0.3 < losses[0]


def test_the_picture_shows_what_is_hidden_and_what_was_said():
    run = trainer(settings("masked_patch"))
    pixels = np.zeros((2, 8, 8, 1), np.uint8)
    pixels[1] = 255
    batch = Batch(Normaliser(run.config.preprocessing)(pixels), torch.tensor([-1, -1]), ["a", "b"])
    shown = run.objective.illustrate(run.model.eval(), batch)
    assert list(shown.columns) == ["original", "corrupted", "wanted", "predicted"]
    original, corrupted, wanted, predicted = shown.rows[1]
    assert np.array_equal(original, pixels[1])
    assert np.array_equal(wanted, pixels[1]), "white is white at three bits too"
    assert sorted(np.unique(corrupted)) == [128, 255]
    assert (corrupted == 128).mean() == 0.5
    assert (predicted[corrupted == 255] == 255).all(), "what is seen is left as it is"


def test_what_is_predicted_of_a_patch_is_said_by_its_own_token():
    """The tokens before the patches (class, registers) are no patches."""
    run = trainer(settings("masked_patch", masked_patch=MaskedPatchConfig(masked=0.0, replaced=0.0)))
    objective, model, batch = run.objective, run.model.eval(), some_batch(count=3)
    torch.nn.init.normal_(objective.head.weight)
    noise = torch.rand(3, 16, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output, corruption = objective._predict(model, batch.images, noise)
        said = objective.head(model.encode(model.embed(batch.images)))[:, model.config.prefix_tokens :]
    for image, places in enumerate(corruption.chosen):
        assert torch.allclose(output[image].flatten(1), said[image, places], atol=1e-5)
