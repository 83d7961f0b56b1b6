"""Fine-tuning begins with a head in closed form: a model at once, a good start, and nothing worse kept in the end."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitrail
from tests.conftest import toy
from tests.training.probed import KILLS
from tests.training.test_loop import settings, some_batch, trainer
from tests.training.test_resume import ROOT, assert_same_tensors_and_records
from vitrail.config import DataConfig, OptimizerConfig, Preprocessing
from vitrail.run import open_splits
from vitrail.train import fit
from vitrail.training.progress import Silent
from vitrail.transfer import chosen_config

GREY = Preprocessing(8, (0.5,), (0.5,), crop="squash", crop_fraction=1.0)


def digit_model(**overrides) -> vitrail.models.vit.ViT:
    model = toy(**{"image_size": 8, "patch_size": 2, "channels": 1, "depth": 1, "num_classes": 0, **overrides})
    model.card.preprocessing = GREY
    return model


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model") / "model"
    vitrail.save(digit_model(), folder)
    return str(folder)


def weights(bundle: Path) -> dict[str, torch.Tensor]:
    return load_file(bundle / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    ours, theirs = weights(one), weights(other)
    return all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def records(run: Path, kind: str) -> list[dict]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [each for each in found if each["kind"] == kind]


@pytest.mark.parametrize("said", [{"quick": True}, {"freeze": "backbone"}], ids=str)
def test_quick_is_the_probe_and_the_backbone_stays(model, tmp_path, said):
    result = vitrail.finetune(model, "digits", tmp_path / "run", **said)
    run = tmp_path / "run"
    assert (result.steps, result.bundle, result.metrics["kept"]) == (0, run / "best", "probe")
    assert not (run / "snapshots").exists(), "no step was taken"
    assert same(run / "probe", run / "best")
    assert same(run / "probe", run / "bundle")
    tuned = vitrail.load(run)
    assert tuned.card.label_names == tuple("0123456789")
    assert all(torch.equal(value, tuned.state_dict()[name]) for name, value in vitrail.load(model).state_dict().items())
    (record,) = records(run, "probe")
    assert result.metrics["n"] == 180
    assert result.metrics["top1"] == result.metrics["probe"]["top1"] > 0.6, "random features, but many"
    assert record["top1"] == tuned.card.provenance["metrics"]["val"]["top1"]


def test_the_numbers_of_the_probe_are_those_of_its_bundle(model, tmp_path):
    """Solved and measured on cached features: the model that was saved says the same of the pictures themselves."""
    from vitrail.data.loader import EvaluationLoader
    from vitrail.evaluation.measure import measure
    from vitrail.tasks.classification.meter import Accuracy

    vitrail.finetune(model, "digits", tmp_path / "run", quick=True)
    probe = vitrail.load(tmp_path / "run/probe")
    split = open_splits(chosen_config(model, "digits")).split("val")
    batches = EvaluationLoader(split, GREY, batch_size=64, workers=0)
    seen = measure(probe, batches, Accuracy(probe.card.meaning), torch.device("cpu")).result()
    (record,) = records(tmp_path / "run", "probe")
    assert (seen["n"], seen["top1"]) == (record["n"], record["top1"])
    assert seen["loss"] == pytest.approx(record["loss"], abs=1e-5)


def test_fine_tuning_starts_from_the_probe_and_not_from_zero(model, tmp_path):
    config = chosen_config(model, "digits").with_(steps=2, log_every=1, evaluate_every=1)
    config = config.with_(optimizer=replace(config.optimizer, lr=1e-9))
    fit(config, tmp_path / "run", report=False)
    (probe,), first = records(tmp_path / "run", "probe"), records(tmp_path / "run", "val")[0]
    assert first["loss"] == pytest.approx(probe["loss"], abs=1e-4)
    assert first["loss"] < 0.8 * np.log(10), "the head's scale suits cross-entropy"


def test_what_is_worse_than_the_probe_is_not_kept(model, tmp_path):
    ruin = OptimizerConfig("adamw", lr=0.05, weight_decay=0.0)
    result = vitrail.finetune(model, "digits", tmp_path / "run", steps=4, evaluate_every=1, optimizer=ruin)
    run = tmp_path / "run"
    assert max(each["top1"] for each in records(run, "val")) < records(run, "probe")[0]["top1"]
    assert result.metrics["kept"] == "probe"
    assert same(run / "best", run / "probe")
    assert not same(run / "bundle", run / "probe")
    assert result.metrics["top1"] == result.metrics["probe"]["top1"]
    assert "by the probe: no step did better" in result.summary()


def test_what_is_better_than_the_probe_is_kept_and_both_are_reported(tmp_path):
    """Untrained features of so few dimensions are soon bettered."""
    sizes = {"width": 8, "depth": 1, "num_heads": 2, "mlp_dim": 32, "patch_size": 2, "image_size": 8}
    torch.manual_seed(0)
    untrained = vitrail.create("Ti/16", channels=1, num_classes=0, **sizes)
    untrained.card.preprocessing = GREY
    vitrail.save(untrained, tmp_path / "model")
    model = str(tmp_path / "model")
    adam = OptimizerConfig("adamw", lr=1e-2, weight_decay=0.0)
    changes = {"steps": 100, "evaluate_every": 50, "optimizer": adam}
    still = replace(chosen_config(model, "digits").transform, crop="evaluation", flip=0.0)
    result = vitrail.finetune(model, "digits", tmp_path / "run", transform=still, **changes)
    run = tmp_path / "run"
    assert result.metrics["kept"] == "fine-tuned"
    assert not same(run / "best", run / "probe")
    assert result.metrics["top1"] > result.metrics["probe"]["top1"]
    assert result.metrics["probe"]["n"] == 180
    assert f"the probe {result.metrics['probe']['top1']:.2%}" in result.summary()


def test_of_equal_accuracies_the_lower_loss_is_best(tmp_path):
    kept = []
    run = trainer(settings(steps=4, evaluate_every=1, snapshot_every=9), some_batch(), folder=tmp_path)
    found = iter([(0.5, 0.7), (0.5, 0.6), (0.5, 0.65), (0.4, 0.1)])
    run.batches = lambda _: iter([some_batch()] * 4)
    run.evaluate = lambda _: dict(zip(("top1", "loss"), next(found), strict=True))
    run.keep_best = lambda _, result: kept.append(result["loss"])
    run.fit(Silent())
    assert kept == [0.7, 0.6]
    assert (run.progress.best, run.progress.best_loss, run.progress.best_step) == (0.5, 0.6, 2)


def folder_of_photos(folder: Path, **counts: int) -> Path:
    generator = np.random.default_rng(0)
    for split, count in counts.items():
        for place, name in enumerate(("dark", "light")):
            (folder / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(60 * place, 120 + 60 * place, (8, 8), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{index}.png")
    return folder


def test_what_is_reported_is_not_chosen_by(model, tmp_path):
    """A data set of train and val alone: val is reported, so a part of training chooses."""
    data = str(folder_of_photos(tmp_path / "data", train=20, val=6))
    source = open_splits(chosen_config(model, data))
    sizes = {name: len(split) for name, split in source.splits.items()}
    assert sizes == {"train": 36, "dev": 4, "val": 12}
    assert not set(source.split("train").ids) & set(source.split("dev").ids)
    result = vitrail.finetune(model, data, tmp_path / "run", steps=2, evaluate_every=1)
    assert (result.metrics["split"], result.metrics["n"], result.metrics["probe"]["n"]) == ("val", 12, 12)
    assert {each["n"] for kind in ("probe", "val") for each in records(tmp_path / "run", kind)} == {4}
    assert vitrail.load(tmp_path / "run/probe").card.provenance["metrics"]["dev"]["n"] == 4
    own = open_splits(chosen_config(model, "digits"))
    assert "dev" not in own.splits, "where there is a test split, val chooses"


def test_without_validation_the_probe_is_the_bundle_until_the_last_step(model, tmp_path):
    config = chosen_config(model, "digits").with_(data=DataConfig("digits", val_fraction=0.0), steps=2)
    fit(config.with_(freeze="backbone"), tmp_path / "quick", report=False)
    assert not (tmp_path / "quick/best").exists()
    assert same(tmp_path / "quick/bundle", tmp_path / "quick/probe")
    result = fit(config, tmp_path / "run", report=False)
    assert (result.bundle, result.metrics["kept"]) == (tmp_path / "run/bundle", "fine-tuned")
    assert same(tmp_path / "run/probe", tmp_path / "quick/probe")


def test_two_heads_have_no_closed_form_and_that_is_said(tmp_path, capsys):
    vitrail.save(digit_model(distillation_token=True), tmp_path / "model")
    result = vitrail.finetune(str(tmp_path / "model"), "digits", tmp_path / "run", steps=2)
    assert "a model with a distillation token has two heads" in capsys.readouterr().err
    assert not (tmp_path / "run/probe").exists()
    assert "probe" not in result.metrics


def test_the_papers_recipes_begin_at_zero(model):
    assert chosen_config(model, "digits").head == "closed_form"
    assert chosen_config(model, "digits", "finetune-cifar10").head == "zero"


@pytest.mark.parametrize("family", ["hybrid", "resnet"])
def test_every_family_has_its_probe(family, tmp_path):
    small = {"stages": (1, 1), "stem_width": 32, "image_size": 16}
    if family == "resnet":
        made = vitrail.create("BiT-R50x1", channels=1, num_classes=3, **small)
    else:
        made = digit_model(patch_size=1, stem="plain", **small)
    made.card.preprocessing = replace(GREY, image_size=16)
    vitrail.save(made, tmp_path / "model")
    result = vitrail.finetune(str(tmp_path / "model"), "digits", tmp_path / "run", quick=True)
    assert result.metrics["top1"] > 0.3


@pytest.fixture(scope="module")
def runs(model, tmp_path_factory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("probed")
    command = [sys.executable, "-m", "tests.training.probed", model, str(out)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    return out, json.loads(result.stdout)


@pytest.mark.parametrize("kill", KILLS)
def test_killed_in_the_probe_or_after_it_and_resumed_is_bit_identical(runs, kill):
    out, found = runs
    assert [each["ended"] for each in found[kill]] == [[-9], [0]], found[kill]
    assert_same_tensors_and_records(out / "whole", out / kill)
    assert same(out / "whole/probe", out / kill / "probe")
    assert len(records(out / kill, "probe")) == 1


def test_several_processes_solve_the_same_head(runs):
    out, found = runs
    assert found["two"][0]["ended"] == [0, 0], found["two"]
    assert (out / "two/best").exists()
    one, two = weights(out / "whole/probe"), weights(out / "two/probe")
    assert all(torch.allclose(tensor, two[name], atol=1e-3) for name, tensor in one.items())
    for name in ("before-the-probe", "after-the-probe"):
        first, second = found[f"two-{name}"]
        assert -9 in first["ended"]
        assert second["ended"] == [0, 0], second
        assert_same_tensors_and_records(out / "two", out / f"two-{name}")
