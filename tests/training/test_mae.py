"""The masked autoencoder: its loss is transformers', published weights load, the encoder sees what is visible."""

import numpy as np
import pytest
import torch

import vitrail
from tests.conftest import pictures, randomised, toy
from tests.training.unlabelled import settings, some_batch, trainer
from vitrail.checkpoints.load import assemble, open_checkpoint
from vitrail.config import MaeConfig, OptimizerConfig, Preprocessing, ScheduleConfig
from vitrail.data.loader import Batch
from vitrail.models.card import Card
from vitrail.training.objectives.mae import MaskedAutoencoder
from vitrail.training.objectives.pixels import pixels_as_pictures

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 48,
    "patch_size": 8, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 64, "layer_norm_eps": 1e-6, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def batch_of(images: torch.Tensor) -> Batch:
    return Batch(images, torch.full((len(images),), -1), [str(number) for number in range(len(images))])


def ours_of(folder, **changes) -> tuple:
    """The model and the objective of a folder that transformers wrote, every tensor of the decoder in its place."""
    reading = open_checkpoint(folder).reading
    model = assemble(reading, Card())
    config = MaeConfig(decoder_width=16, decoder_depth=2, decoder_heads=2, **changes)
    objective = MaskedAutoencoder(config, model.config, Preprocessing(48)).eval()
    decoder = {name: tensor for name, tensor in reading.state.items() if name not in model.state_dict()}
    objective.load_state_dict(decoder)  # strict: all of them, and no other
    return model, objective


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("fraction", [0.75, 0.5])
def test_the_loss_is_that_of_transformers(peers, tmp_path, normalise, fraction):
    """On the same weights, images and noise, in value and in every gradient."""
    settings = peers.transformers.ViTMAEConfig(**SMALL, norm_pix_loss=normalise, mask_ratio=fraction)
    theirs = randomised(peers.transformers.ViTMAEForPreTraining(settings)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    model, objective = ours_of(tmp_path / "theirs", normalise=normalise, fraction=fraction)
    images, noise = pictures(model, 5), torch.rand(5, 36, generator=torch.Generator().manual_seed(3))
    wanted = theirs(images, noise=noise).loss
    loss = objective(model, batch_of(images), noise).loss
    assert abs(loss.item() - wanted.item()) <= 1e-5
    assert loss.item() > 0.1
    loss.backward()
    wanted.backward()
    theirs_first = theirs.vit.embeddings.patch_embeddings.projection.weight.grad
    assert torch.allclose(model.patch_embed.proj.weight.grad, theirs_first, atol=1e-5)
    assert torch.allclose(objective.mask_token.grad, theirs.decoder.mask_token.grad, atol=1e-5)
    assert torch.allclose(objective.decoder_pred.weight.grad, theirs.decoder.decoder_pred.weight.grad, atol=1e-5)


def test_other_noise_gives_another_loss(peers, tmp_path):
    theirs = randomised(peers.transformers.ViTMAEForPreTraining(peers.transformers.ViTMAEConfig(**SMALL)))
    theirs.save_pretrained(tmp_path / "theirs")
    model, objective = ours_of(tmp_path / "theirs")
    images = pictures(model, 5)
    losses = {objective(model, batch_of(images), torch.rand(5, 36)).loss.item() for _ in range(3)}
    assert len(losses) == 3


def test_the_decoders_positions_are_the_published_ones(peers):
    theirs = peers.transformers.ViTMAEForPreTraining(peers.transformers.ViTMAEConfig(**SMALL)).decoder
    theirs.initialize_weights(36)
    model = toy(image_size=48, num_classes=0)
    objective = MaskedAutoencoder(MaeConfig(decoder_width=16, decoder_heads=2), model.config, Preprocessing(48))
    assert torch.allclose(objective.decoder_pos_embed, theirs.decoder_pos_embed, atol=1e-6)
    assert theirs.decoder_pos_embed.std() > 0.5


@pytest.mark.parametrize("decoder", [True, False])
def test_published_files_load_as_encoders(tmp_path, decoder):
    """As facebookresearch/mae published them: {"model": ...} under timm's names, with a decoder or without."""
    model = toy(num_classes=0)
    state = dict(model.state_dict())
    if decoder:
        extra = MaskedAutoencoder(MaeConfig(16 / 32, 16, 1, 2), model.config, Preprocessing(32))
        state |= extra.state_dict()
    torch.save({"model": state}, tmp_path / "mae_pretrain.pth")
    loaded = vitrail.load(tmp_path / "mae_pretrain.pth", model=model.config)
    images = pictures(model)
    with torch.no_grad():
        assert torch.equal(loaded(images), model(images))
    said = " ".join(loaded.card.notes)
    assert ("tensors of a pre-training decoder" in said) == decoder
    assert "WARNING" not in said


def test_the_encoder_sees_the_visible_patches_only():
    """Whatever stands in a masked patch, what the decoder says of it is the same to the bit."""
    run = trainer(settings("mae"))
    model, objective = run.model.eval(), run.objective.eval()
    first, noise = some_batch(count=3).images, torch.rand(3, 16)
    visible = noise.argsort(dim=1)[:, :4]
    second = torch.randn_like(first)
    for image in range(3):
        for place in visible[image].tolist():
            top, left = place // 4 * 2, place % 4 * 2
            second[image, :, top : top + 2, left : left + 2] = first[image, :, top : top + 2, left : left + 2]
    with torch.no_grad():
        said = [objective._predict(model, images, noise)[0] for images in (first, second)]
    assert torch.equal(*said)
    tokens = []
    model.blocks[0].register_forward_hook(lambda module, inputs, output: tokens.append(inputs[0].shape[1]))
    objective(model, some_batch())
    assert tokens == [1 + 4], "the class token, and a quarter of 16 patches"


def test_three_quarters_are_masked_in_each_image_and_every_patch_alike():
    counts = torch.zeros(16)
    run = trainer(settings("mae"))
    torch.manual_seed(0)
    batch = some_batch(count=500)
    with torch.no_grad():
        for _ in range(20):
            visible = run.objective._predict(run.model, batch.images, None)[1]
            assert visible.shape == (500, 4)
            assert (visible.sort(dim=1).values.diff(dim=1) > 0).all()
            counts += visible.flatten().bincount(minlength=16)
    assert (counts / 10_000 - 0.25).abs().max() < 4 * (0.25 * 0.75 / 10_000) ** 0.5


@pytest.mark.parametrize("normalise", [True, False])
def test_one_batch_is_learned_by_heart_with_the_same_mask(normalise):
    """Each picture has its own visible patches, so all the rest of it can be known."""
    config = settings(
        "mae",
        mae=MaeConfig(decoder_width=32, decoder_depth=1, decoder_heads=2, normalise=normalise),
        optimizer=OptimizerConfig("adamw", 3e-3, 0.0),
        schedule=ScheduleConfig("constant"),
    )
    run, batch, noise = trainer(config), some_batch(count=8), torch.rand(8, 16)
    learned = run.objective.forward
    run.objective.forward = lambda model, part: learned(model, part, noise)
    losses = [run.step(iter([batch]))["loss"] for _ in range(300)]
    assert losses[-1] < 0.02 * losses[0]


def test_the_picture_is_the_original_where_the_decoder_is_perfect():
    """A decoder made to say what is wanted gives the picture back: pixels, channels and contrast in their places."""
    config = settings("mae", model=settings("mae").model.with_(channels=3), preprocessing=Preprocessing(8))
    run, batch = trainer(config), some_batch(count=2, channels=3)
    wanted = run.objective._wanted(batch.images)[0]
    visible = torch.arange(4).expand(2, -1)
    run.objective._predict = lambda model, images, noise: (wanted, visible)
    shown = run.objective.illustrate(run.model.eval(), batch)
    for original, masked, reconstruction in shown.rows:
        assert np.abs(original.astype(int) - reconstruction.astype(int)).max() <= 1
        assert (masked[:2] == original[:2]).all()
        assert (masked[2:] == 128).all()


def test_pictures_are_rounded_to_the_nearest_byte():
    values = torch.tensor([-0.2, 0.0, 0.6 / 255, 1.4 / 255, 254.6 / 255, 1.2]).view(1, 1, 2, 3)
    assert pixels_as_pictures(values)[0].ravel().tolist() == [0, 0, 1, 1, 255, 255]


def test_a_flat_patch_is_divided_by_no_less_than_the_root_of_the_epsilon():
    """1e-6 is added to the variance, as the published code does: of a patch with that variance it is half of it."""
    objective = trainer(settings("mae")).objective
    flat = torch.zeros(1, 1, 8, 8)
    flat[..., ::2] = 1e-3 * (3 / 4) ** 0.5  # in patches of 2 x 2: a variance of 1e-6 / 4
    wanted, mean, deviation = objective._wanted(flat)
    variance = flat[0, 0, :2, :2].var().item()
    assert deviation.unique().tolist() == pytest.approx([(variance + 1e-6) ** 0.5], rel=1e-3)
    assert torch.allclose(wanted * deviation + mean, wanted * deviation + flat.mean(), atol=1e-9)
