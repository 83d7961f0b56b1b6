"""The loop: it learns, accumulates, averages, stops on nonsense, keeps the best, lists bad images."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.training.killing import CONFIG
from vitrail.config import DataConfig, OptimizerConfig, ScheduleConfig, TrainConfig
from vitrail.data.loader import Batch
from vitrail.errors import UserError
from vitrail.models.build import create
from vitrail.train import fit
from vitrail.training.loop import Trainer
from vitrail.training.objectives.supervised import Supervised


def settings(**changes) -> TrainConfig:
    """The small run of the kill tests, shorter."""
    base = {"steps": 20, "evaluate_every": 10, "snapshot_every": 10, "ema": 0.0, "accumulate": 1}
    return CONFIG.with_(**{**base, **changes})


def trainer(config: TrainConfig, batch: Batch, objective=None, folder: Path = Path("unused")) -> Trainer:
    torch.manual_seed(0)
    model = create(config.model.with_(num_classes=10, dropout=0.0, drop_path=0.0))
    return Trainer(
        config=config,
        run=folder,
        model=model,
        model_config=model.config,
        objective=objective or Supervised(config.objective, 10),
        total=config.total_steps(100),
        batches=lambda position: iter(()),
        evaluate=None,
        keep_best=lambda *_: None,
        epoch_samples=100,
    )


def some_batch(count: int = 16, soft: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(count) % 10
    targets = torch.nn.functional.one_hot(labels, 10).float() if soft else None
    images = torch.randn(count, 1, 8, 8, generator=generator)
    return Batch(images, labels, [f"sample/{i}" for i in range(count)], targets, [], 0)


@pytest.mark.parametrize("objective", ["softmax", "sigmoid"])
@pytest.mark.parametrize("optimizer", [OptimizerConfig("adamw", 3e-3, 0.0), OptimizerConfig("sgd", 0.3, 0.0)])
def test_one_batch_is_learned_by_heart(objective, optimizer):
    if objective == "sigmoid" and optimizer.name == "sgd":
        optimizer = OptimizerConfig("sgd", 0.1, 0.0)
    config = settings(objective=objective, optimizer=optimizer, schedule=ScheduleConfig("constant"), steps=400)
    run, batch = trainer(config, some_batch()), some_batch()
    losses = [run.step(iter([batch]))["loss"] for _ in range(400)]
    assert losses[-1] < 0.02 < losses[0]


@pytest.mark.parametrize("soft", [False, True])
def test_accumulation_changes_nothing_but_rounding(soft):
    weights = []
    for parts in (1, 2, 4):
        run = trainer(settings(accumulate=parts, batch_size=16), some_batch())
        for _ in range(3):
            run.step(iter([some_batch(soft=soft)]))
        weights.append(run.model.state_dict())
    for other in weights[1:]:
        for name, tensor in weights[0].items():
            assert torch.allclose(tensor, other[name], atol=2e-6), name


def test_hard_and_equal_soft_labels_give_the_same_loss():
    for kind in ("softmax", "sigmoid"):
        objective, model = Supervised(kind, 10), trainer(settings(), some_batch()).model
        hard, soft = some_batch(), some_batch(soft=True)
        with torch.no_grad():
            first, second = objective(model, hard), objective(model, soft)
        assert first.loss.item() == pytest.approx(second.loss.item(), rel=1e-5)
        assert (first.measures, first.count) == (second.measures, second.count)


def test_a_loss_that_is_not_finite_stops_before_the_weights(tmp_path):
    batch = some_batch()
    batch.images[3] = math.nan
    run = trainer(settings(), batch, folder=tmp_path)
    run.step(iter([some_batch()]))
    run.save()
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    with pytest.raises(UserError) as error:
        run.step(iter([batch]))
    for word in ("step 2", "nan", "sample/0", "snapshots/step-000000001", "--optimizer.lr"):
        assert word in str(error.value)
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert run.progress.step == 1


def test_a_run_leaves_what_the_design_says(tmp_path):
    result = fit(settings(ema=0.9), tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    pictures = {"curves.png", "confusion.png", "predictions.png", "report.html"}
    assert names >= {"config.json", "metrics.jsonl", "snapshots", "bundle", "best", "quarantine.txt", *pictures}
    assert (result.steps, result.metrics["split"], result.metrics["n"]) == (20, "test", 180)
    assert result.bundle == tmp_path / "run/best"
    model = vitrail.load(tmp_path / "run")
    assert model.card.label_names == tuple("0123456789")
    assert model.card.provenance["recipe"] == "digits"
    assert len(model.card.provenance["data"]["fingerprint"]) == 64
    found = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in found if each["kind"] == "val"] == [10, 20]
    assert [each["step"] for each in found if each["kind"] == "train"] == [5, 10, 15, 20]
    assert json.loads((tmp_path / "run/config.json").read_text())["classes"] == list("0123456789")


def test_two_runs_are_the_same_to_the_bit_and_another_seed_is_not(tmp_path):
    runs = {name: fit(settings(seed=seed), tmp_path / name) for name, seed in (("a", 0), ("b", 0), ("c", 1))}
    weights = {name: (tmp_path / name / "bundle/model.safetensors").read_bytes() for name in runs}
    assert weights["a"] == weights["b"]
    assert weights["a"] != weights["c"]


def test_best_is_the_best_on_validation(tmp_path):
    """With a rate that ruins the model in the end, what is kept is from before."""
    config = settings(
        steps=60, evaluate_every=20, optimizer=OptimizerConfig("adamw", 3e-3), schedule=ScheduleConfig("constant")
    )
    fit(config, tmp_path / "run")
    found = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    validation = [each["top1"] for each in found if each["kind"] == "val"]
    kept = vitrail.load(tmp_path / "run/best").card.provenance["metrics"]["val"]["top1"]
    assert kept == max(validation)


def photos(folder: Path, count: int, broken: int) -> list[str]:
    """Two classes of pictures; returns the names of the broken ones."""
    generator = np.random.default_rng(0)
    bad = []
    for index in range(count):
        path = folder / f"{'ab'[index % 2]}/{index:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if index % (count // broken) == 1:
            path.write_bytes(b"not a picture")
            bad.append(f"{path.parent.name}/{path.name}")
        else:
            Image.fromarray(generator.integers(0, 255, (9, 9, 3), dtype=np.uint8)).save(path)
    return sorted(bad)


def colour(**changes) -> TrainConfig:
    config = settings(**changes)
    model = config.model.with_(channels=3)
    return config.with_(model=model, preprocessing=vitrail.Preprocessing(8, crop="squash"))


def test_two_percent_broken_files_train_to_the_end_with_an_exact_list(tmp_path):
    bad = photos(tmp_path / "photos", 200, 4)
    data = DataConfig(str(tmp_path / "photos"), max_bad="5%", val_fraction=0.0, test_fraction=0.0)
    fit(colour(data=data, steps=20, batch_size=40), tmp_path / "run")
    listed = (tmp_path / "run/quarantine.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in listed] == bad


def test_too_many_broken_files_stop_the_run(tmp_path):
    photos(tmp_path / "photos", 200, 4)
    data = DataConfig(str(tmp_path / "photos"), max_bad="1%", val_fraction=0.0, test_fraction=0.0)
    with pytest.raises(UserError, match=r"--data\.max-bad"):
        fit(colour(data=data, steps=20, batch_size=40), tmp_path / "run")


def test_a_frozen_backbone_stays_and_the_head_learns(tmp_path):
    fit(settings(), tmp_path / "first")
    start = vitrail.load(tmp_path / "first/bundle")
    config = settings(init_from=str(tmp_path / "first/bundle"), freeze="backbone")
    fit(config, tmp_path / "probe")
    end = vitrail.load(tmp_path / "probe/bundle").state_dict()
    for name, tensor in start.state_dict().items():
        assert torch.equal(tensor, end[name]) != name.startswith("head"), name


def test_finetuning_at_a_higher_resolution_starts_from_interpolated_positions(tmp_path):
    fit(settings(), tmp_path / "first")
    model = settings().model.with_(image_size=16)
    config = settings(init_from=str(tmp_path / "first"), model=model, steps=1)
    fit(config.with_(optimizer=OptimizerConfig("sgd", 1e-12, 0.0)), tmp_path / "large")
    large = vitrail.load(tmp_path / "large/bundle")
    expected = vitrail.load(tmp_path / "first", image_size=16)
    assert large.config.grid == (4, 4)
    assert torch.allclose(large.pos_embed, expected.pos_embed, atol=1e-6)
