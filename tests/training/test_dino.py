"""Self-distillation: the loss by hand, the teacher and the centre follow, views are the loader's, nothing collapses."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.unlabelled import settings, some_batch, trainer
from vitrail.config import OptimizerConfig, Preprocessing, ScheduleConfig, TransformConfig
from vitrail.data import open_source
from vitrail.data.loader import TrainingLoader
from vitrail.process_group import ProcessGroup
from vitrail.run import Placement, Run
from vitrail.training.objectives.base import Moment
from vitrail.training.objectives.dino import SelfDistillation


def test_the_loss_is_the_cross_entropy_of_every_pair_of_different_views():
    run = trainer(settings("dino"))
    objective, model, batch = run.objective.eval(), run.model.eval(), some_batch(count=3, views=True)
    objective.centre.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    views = [batch.images, *batch.views]
    with torch.no_grad():
        result = objective(model, batch)
        teacher = [objective.teacher_head(objective.teacher.features(view)).numpy() for view in views[:2]]
        student = [objective.head(model.features(view)).numpy() for view in views]
    losses, entropies = [], []
    for t, output in enumerate(teacher):
        scaled = (output - objective.centre.numpy()) / 0.04
        wanted = np.exp(scaled) / np.exp(scaled).sum(axis=1, keepdims=True)
        for s, other in enumerate(student):
            if s != t:
                said = other / 0.1 - np.log(np.exp(other / 0.1).sum(axis=1, keepdims=True))
                losses.append(-(wanted * said).sum(axis=1).mean())
                entropies.append(-(wanted * np.log(wanted)).sum(axis=1).mean())
    assert len(losses) == 2 * 4 - 2
    assert result.loss.item() == pytest.approx(np.mean(losses), rel=1e-4)
    assert result.measures["divergence"] / 3 == pytest.approx(np.mean(losses) - np.mean(entropies), abs=1e-4)
    assert result.measures["entropy"] / 3 == pytest.approx(np.mean(entropies) / math.log(32), rel=1e-4)


def test_the_teacher_is_the_students_average_and_its_momentum_rises_to_one():
    run = trainer(settings("dino", steps=10, accumulate=1))
    objective = run.objective
    for step in range(10):
        before = {name: tensor.clone() for name, tensor in objective.teacher.state_dict().items()}
        run.step(iter([some_batch(views=True, seed=step)]))
        momentum = 1 - (1 - 0.9) * (1 + math.cos(math.pi * step / 10)) / 2
        assert objective.momentum == pytest.approx(momentum)
        student = run.model.state_dict()
        for name, tensor in objective.teacher.state_dict().items():
            assert torch.allclose(tensor, momentum * before[name] + (1 - momentum) * student[name], atol=1e-6), name
    assert not any(parameter.requires_grad for parameter in objective.teacher.parameters())
    assert objective.encoder(run.model) is objective.teacher
    objective.begin(Moment(10, 10, 1.0))
    assert objective.momentum == 1


def test_the_centre_follows_the_teachers_outputs_whole_batch_by_whole_batch():
    centres = []
    for parts in (1, 2, 4):
        run = trainer(settings("dino", accumulate=parts, batch_size=16))
        batch = some_batch(views=True)
        with torch.no_grad():
            seen = torch.cat([batch.images, batch.views[0]])
            mean = run.objective.teacher_head(run.objective.teacher.features(seen)).mean(dim=0)
        run.step(iter([batch]))
        assert torch.allclose(run.objective.centre, 0.1 * mean, atol=1e-6)
        centres.append(run.objective.centre.clone())
    assert torch.allclose(centres[0], centres[1], atol=1e-6)
    assert torch.allclose(centres[0], centres[2], atol=1e-6)


def test_the_last_layer_stays_in_the_first_epochs():
    run = trainer(settings("dino"))  # 100 samples an epoch; frozen for half of one
    start = run.objective.head.last.detach().clone()
    for position in (16, 32, 48, 64):
        batch = some_batch(views=True)
        batch.position = position
        run.step(iter([batch]))
        assert torch.equal(run.objective.head.last, start)
    run.step(iter([some_batch(views=True)]))
    assert not torch.equal(run.objective.head.last, start)


def test_the_teachers_temperature_warms_up():
    dino = settings("dino").dino
    warmed = replace(dino, warmup_temperature=0.02, teacher_temperature=0.06, warmup_epochs=4.0)
    objective = trainer(settings("dino", dino=warmed)).objective
    for epoch, wanted in ((0, 0.02), (1, 0.03), (3, 0.05), (4, 0.06), (9, 0.06)):
        objective.begin(Moment(0, 1, float(epoch)))
        assert objective.temperature == pytest.approx(wanted)


def test_one_batch_is_learned_down_to_the_teachers_own_entropy():
    """A cross-entropy cannot fall below the entropy of what is learned from: what is above it is the divergence, and
    it all but vanishes. With a teacher that stays and views that are the same picture, nothing else is in the way."""
    still = replace(settings("dino").dino, momentum=1.0, centre_momentum=1.0, freeze_last_epochs=0.0, local_crops=0)
    config = settings(
        "dino", dino=still, optimizer=OptimizerConfig("adamw", 3e-3, 0.0), schedule=ScheduleConfig("constant")
    )
    run, batch = trainer(config), some_batch(count=8)
    batch.views = [batch.images]
    with torch.no_grad():
        run.objective.centre += run.objective.teacher_head(run.objective.teacher.features(batch.images)).mean(dim=0)
    steps = [run.step(iter([batch])) for _ in range(200)]
    divergence = [each["measures"]["divergence"] / 8 for each in steps]
    entropy = steps[-1]["measures"]["entropy"] / 8 * math.log(32)
    assert divergence[-1] < 0.05 * divergence[0]
    assert steps[-1]["loss"] == pytest.approx(entropy, abs=0.02)


def test_collapse_is_seen():
    """All alike: no output but one is used. All even: every output, of every sample. Health is neither."""
    run = trainer(settings("dino"))
    objective, batch = run.objective.eval(), some_batch(views=True)

    def measures(outputs: torch.Tensor) -> tuple[float, float]:
        objective.teacher_head.forward = lambda features: outputs[: len(features)]
        with torch.no_grad():
            found = objective(run.model, batch).measures
        return found["entropy"] / 16, found["usage"] / 16

    one = torch.zeros(32, 32)
    one[:, 5] = 1
    assert measures(one) == pytest.approx((0, 0), abs=1e-3)
    assert measures(torch.zeros(32, 32)) == pytest.approx((1, 1), abs=1e-3)
    assert measures(torch.eye(32)) == pytest.approx((0, 1), abs=1e-3)


def loader(position: int = 0, workers: int = 0, seed: int = 0) -> TrainingLoader:
    large, small = TransformConfig(area=(0.5, 1.0)), TransformConfig(area=(0.1, 0.4))
    size, little = Preprocessing(8, (0.5,), (0.5,)), Preprocessing(4, (0.5,), (0.5,))
    return TrainingLoader(
        open_source("digits").split("train"), large, size,
        batch_size=32, seed=seed, num_classes=10, position=position, workers=workers,
        views=[(large, size), (small, little), (small, little)],
    )  # fmt: skip


def test_views_are_several_and_depend_on_seed_epoch_and_sample_alone():
    stream = iter(loader())
    first, second = next(stream), next(stream)
    assert [tuple(view.shape) for view in first.views] == [(32, 1, 8, 8), (32, 1, 4, 4), (32, 1, 4, 4)]
    assert not torch.equal(first.images, first.views[0]), "two large crops, each with its own random numbers"
    assert not torch.equal(first.views[1], first.views[2])
    again = next(iter(loader(position=32, workers=2)))
    assert again.ids == second.ids
    for one, other in zip([second.images, *second.views], [again.images, *again.views], strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(next(iter(loader(seed=1))).views[0], first.views[0])


def test_a_part_of_a_batch_has_its_part_of_every_view():
    batch = next(iter(loader()))
    part = batch.part(8, 12)
    assert part.ids == batch.ids[8:12]
    for one, other in zip([part.images, *part.views], [batch.images, *batch.views], strict=True):
        assert torch.equal(one, other[8:12])


def test_heads_attention_is_what_is_shown():
    run = trainer(settings("dino"))
    shown = run.objective.illustrate(run.model, some_batch(count=2))
    assert list(shown.columns) == ["picture", "head 1", "head 2"]
    for row in shown.rows:
        assert row[0].shape == (8, 8, 1)
        assert [each.shape for each in row[1:]] == [(4, 4), (4, 4)]
        assert all(each.max() == 1 and each.min() >= 0 for each in row[1:])


def test_small_crops_show_little_of_the_picture():
    config = settings("dino", transform=TransformConfig(area=(0.6, 1.0)))
    large, *small = SelfDistillation.views(config)
    assert large == (config.transform, config.preprocessing)
    assert len(small) == config.dino.local_crops == 2
    for transform, preprocessing in small:
        assert (transform.crop, transform.area) == ("inception", config.dino.local_area)
        assert preprocessing.rows_columns == (4, 4)


def test_every_sample_is_validated_once():
    """In batches of 48, of which the last is not full."""
    source = open_source("digits")
    split = source.split("val")
    assert len(split) % 48
    placement = Placement(torch.device("cpu"), ProcessGroup())
    run = Run(settings("dino"), Path("unused"), False, source, placement, 48)
    found = [name for batch in run.unlabelled(split) for name in batch.ids]
    assert sorted(found) == sorted(split.ids)
