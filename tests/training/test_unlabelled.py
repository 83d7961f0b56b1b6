"""What the three objectives without labels share: one loop, exact resumes, runs to fine-tune, clear refusals."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import vitrail
from tests.training.test_report import read
from tests.training.test_resume import assert_same_tensors_and_records
from tests.training.unlabelled import CONFIG, OBJECTIVES, settings, some_batch, trainer
from vitrail.cli import main
from vitrail.config import MaeConfig, MaskedPatchConfig, OptimizerConfig, TrainConfig, TransformConfig
from vitrail.config.self_supervision import SELF_SUPERVISED
from vitrail.data.loader import Batch
from vitrail.errors import UserError
from vitrail.models.cost import memory
from vitrail.train import fit
from vitrail.training import objectives, snapshots, validation
from vitrail.training.memory import planned
from vitrail.training.objectives.base import Illustration, Losses, Objective

ROOT = Path(__file__).parents[2]


def batch_at(name: str, step: int) -> Batch:
    """The batch of a step, and how many samples have been seen after it."""
    batch = some_batch(views=name == "dino", seed=step)
    batch.position = 16 * (step + 1)
    return batch


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A finished run of each."""
    folder = tmp_path_factory.mktemp("runs")
    for name in OBJECTIVES:
        fit(settings(name), folder / name)
    return folder


@pytest.mark.parametrize("name", OBJECTIVES)
def test_resumed_is_bit_identical(tmp_path, name):
    """Stopped in the middle of the schedule, in another process for all it knows: the same weights in the end."""
    whole = trainer(settings(name, accumulate=2, batch_size=16), tmp_path / "whole")
    first = trainer(settings(name, accumulate=2, batch_size=16), tmp_path / "part")
    for step in range(12):
        whole.step(iter([batch_at(name, step)]))
        if step < 7:
            first.step(iter([batch_at(name, step)]))
    first.save()
    second = trainer(settings(name, accumulate=2, batch_size=16, seed=1), tmp_path / "part")  # other weights at first
    second.config = first.config
    second.resume()
    for step in range(7, 12):
        second.step(iter([batch_at(name, step)]))
    ours, theirs = (snapshots.pack(run.learner, run.optimizer, None) for run in (whole, second))
    assert ours.keys() == theirs.keys()
    for key, tensor in ours.items():
        assert torch.equal(tensor, theirs[key]), key


@pytest.mark.slow
@pytest.mark.parametrize("name", OBJECTIVES)
def test_killed_and_resumed_is_bit_identical(tmp_path, name):
    """Model, decoder, head, teacher, centre, moments: whatever the objective has of its own is in the snapshot."""
    command = [sys.executable, "-m", "tests.training.killing", str(tmp_path), "4", "0", name]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 kills, 2 inside a snapshot write" in result.stdout
    assert_same_tensors_and_records(tmp_path / "whole", tmp_path / "killed")
    found = snapshots.read_snapshot(tmp_path / "whole/snapshots")
    assert found is not None
    own = {"masked_patch": "mask_token", "mae": "decoder_pred.weight", "dino": "teacher_head.last"}[name]
    assert f"model.objective.{own}" in found[1]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_objectives_own_parameters_learn_and_are_snapshotted(tmp_path, name):
    run = trainer(settings(name), tmp_path)
    before = {key: value.clone() for key, value in run.objective.state_dict().items()}
    for step in range(12):
        run.step(iter([batch_at(name, step)]))
    still = {"decoder_pos_embed"}
    for key, value in run.objective.state_dict().items():
        assert torch.equal(value, before[key]) == (key in still), key
    run.save()
    again = trainer(settings(name), tmp_path)
    again.resume()
    for one, other in ((run.model, again.model), (run.objective, again.objective)):
        for key, value in one.state_dict().items():
            assert torch.equal(value, other.state_dict()[key]), key
    optimised = [parameter for group in run.optimizer.param_groups for parameter in group["params"]]
    assert len(optimised) == sum(p.requires_grad for p in run.learner.parameters())


@pytest.mark.parametrize("name", ["masked_patch", "mae"])
def test_accumulation_changes_nothing_but_rounding(name):
    """Masks are drawn sample by sample in order, so they are the same in any number of parts."""
    weights = []
    for parts in (1, 4):
        # Adam would blow up the rounding of gradients that are zero but for rounding, those of the keys' biases.
        run = trainer(settings(name, accumulate=parts, batch_size=16, optimizer=OptimizerConfig("sgd", 0.1, 0.0)))
        for step in range(3):
            run.step(iter([some_batch(seed=step)]))
        weights.append(run.learner.state_dict())
    for key, tensor in weights[0].items():
        assert torch.allclose(tensor, weights[1][key], atol=2e-6), key


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_run_leaves_an_encoder_that_can_be_fine_tuned(runs, tmp_path, name):
    run = runs / name
    model = vitrail.load(run)
    assert (model.config.num_classes, model.card.label_names) == (0, ())
    tensors = load_file(run / "bundle/model.safetensors")
    assert not any("decoder" in key or "mask" in key or "teacher" in key or "head" in key for key in tensors)
    result = vitrail.finetune(str(run), "digits", tmp_path / "probe", steps=5, freeze="backbone")
    assert result.metrics["n"] == 180
    tuned = vitrail.load(result.bundle)
    assert (tuned.config.num_classes, tuned.card.label_names) == (10, tuple("0123456789"))
    assert all(torch.equal(value, tuned.state_dict()[key]) for key, value in model.state_dict().items())


def test_the_bundle_of_a_distillation_is_the_teacher(runs):
    found = snapshots.read_snapshot(runs / "dino/snapshots")
    assert found is not None
    kept = load_file(runs / "dino/bundle/model.safetensors")
    for key, value in kept.items():
        assert torch.equal(value, found[1][f"model.objective.teacher.{key}"])
    student = {key: found[1][f"model.{key}"] for key in kept}
    assert any(not torch.equal(kept[key], student[key]) for key in kept)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_metrics_make_sense_without_accuracy(runs, name):
    found = [json.loads(line) for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
    train = [each for each in found if each["kind"] == "train"]
    val = [each for each in found if each["kind"] == "val"]
    own = {"masked_patch": {"accuracy"}, "mae": set(), "dino": {"divergence", "entropy", "usage"}}[name]
    common = {"step", "kind", "epoch", "loss", "lr", "gradient_norm", "images_per_second", "waiting"}
    assert all(set(each) == common | own for each in train)
    assert all(set(each) == {"step", "kind", "n", "skipped", "loss", "knn_top1"} | own for each in val)
    assert [each["n"] for each in val] == [180, 180], "every sample of the split once, whatever the batch"
    assert all(0.1 < each["knn_top1"] <= 1 for each in val)
    best = vitrail.load(runs / name / "best").card.provenance["metrics"]["val"]
    if name == "dino":
        assert best["knn_top1"] == max(each["knn_top1"] for each in val)
    else:
        assert best["loss"] == min(each["loss"] for each in val)


@pytest.mark.parametrize("name", ["masked_patch", "mae"])
def test_validation_has_the_same_masks_every_time_and_disturbs_nothing(name):
    run, batches = trainer(settings(name)), [some_batch(16, seed=1), some_batch(7, seed=2)]
    run.step(iter([some_batch()]))
    torch.manual_seed(5)
    first = validation.validate(run.objective, run.model, batches, run.device, seed=0)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn), "training's random numbers go on as they would have"
    assert validation.validate(run.objective, run.model, batches, run.device, seed=0) == first
    assert validation.validate(run.objective, run.model, batches, run.device, seed=1) != first
    assert (first["n"], first["skipped"]) == (23, 0)
    assert run.model.training
    assert run.objective.training


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_report_has_its_picture_and_no_word_of_classes(runs, name):
    run = runs / name
    picture, other = ("attention", "reconstruction") if name == "dino" else ("reconstruction", "attention")
    assert (run / f"{picture}.png").read_bytes().startswith(b"\x89PNG")
    for missing in (other, "confusion", "predictions"):
        assert not (run / f"{missing}.png").exists()
    page = read(run / "report.html")
    for words in ("test loss", "right by their 20 nearest", f"vitrail finetune {run} --data digits"):
        assert words in page.text, words
    assert "Neighbours by step" in (run / "report.html").read_text()
    for words in ("Confusion", "top-1", "vitrail evaluate", "There is no final result"):
        assert words not in page.text, words


def test_an_average_covers_the_decoder_too(tmp_path):
    run = trainer(settings("mae", ema=0.5))
    for step in range(3):
        run.step(iter([some_batch(seed=step)]))
    own = {key: value.clone() for key, value in run.objective.state_dict().items()}
    with run.finished():
        assert not torch.equal(run.objective.decoder_pred.weight, own["decoder_pred.weight"])
    assert torch.equal(run.objective.decoder_pred.weight, own["decoder_pred.weight"])


@pytest.mark.parametrize(("changes", "words"), [
    ({"transform": {"mixup": 0.2}}, "mixup"),
    ({"freeze": "backbone"}, "freeze"),
    ({"compile": True}, "compile"),
    ({"objective": "dino", "ema": 0.9}, "teacher"),
    ({"objective": "dino", "dino": {"local_size": 5}}, "5 x 5"),
    ({"objective": "dino", "dino": {"local_size": 96}}, "96 x 96 is larger than the pictures, 8 x 8"),
    ({"model": {"patch_size": 8}}, "smaller --model.patch-size"),
    ({"objective": "masked_patch", "model": {"patch_size": 8}}, "smaller --model.patch-size"),
    ({"objective": "dino", "dino": {"local_area": (0.5, 0.1)}}, "local_area"),
    ({"objective": "dino", "dino": {"student_temperature": 0}}, "student_temperature"),
    ({"model": {"patch_dropout": 0.5}}, "patch_dropout"),
    ({"model": {"attention": "axial", "class_token": False, "pooling": "average"}}, "full attention"),
    ({"model": {"positions": "relative"}}, "positions"),
    ({"mae": {"fraction": 1.0}}, "nothing to see"),
    ({"mae": {"decoder_heads": 3}}, "decoder_heads"),
    ({"objective": "masked_patch", "masked_patch": {"target": "small"}}, "4 x 4"),
    ({"objective": "masked_patch", "masked_patch": {"target": "big"}}, "mean, small, pixels"),
    ({"objective": "masked_patch", "masked_patch": {"masked": 0.9, "replaced": 0.2}}, "more than the whole"),
    ({"objective": "masked_patch", "masked_patch": {"fraction": 0}}, "fraction"),
], ids=str)  # fmt: skip
def test_what_does_not_go_together_is_refused_by_name(changes, words):
    document = settings("mae").to_json()
    for name, value in changes.items():
        document[name] = {**document[name], **value} if isinstance(value, dict) else value
    with pytest.raises(UserError, match=words):
        TrainConfig.from_json(document)


def test_every_objective_has_a_class_that_knows_whether_it_needs_labels():
    assert set(OBJECTIVES) == set(SELF_SUPERVISED)
    assert not any(objectives.objective_class(settings(name)).labelled for name in SELF_SUPERVISED)
    assert objectives.objective_class(CONFIG.with_(objective="softmax")).labelled


def test_patches_that_an_encoder_does_not_see_take_no_memory():
    whole, quarter = (planned(settings("mae", mae=MaeConfig(share, 16, 1, 2))) for share in (0.25, 0.75))
    activations = memory(CONFIG.model, CONFIG.batch_size, "adamw", 4)["activations"]
    assert whole - quarter == pytest.approx(activations / 2, abs=2)
    assert planned(settings("dino")) == planned(settings("masked_patch"))


class Invariance(Objective):
    """Features of a picture and of a turned copy are to be alike: three lines of mathematics, and all of them wrong."""

    seen: list[tuple[str, int, tuple[int, ...]]] = []  # noqa: RUF012  # of all instances: mode, views, their shape

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    @classmethod
    def create(cls, config, model, settings):
        return cls()

    @classmethod
    def views(cls, config):
        return [(TransformConfig(crop="evaluation", flip=0.0, rotate=90), config.preprocessing)]

    def forward(self, model, batch):
        (turned,) = batch.views
        self.seen.append(("training" if self.training else "validation", len(batch.views), tuple(turned.shape[1:])))
        loss = (self.scale * model.features(batch.images) - model.features(turned)).square().mean()
        return Losses(loss, len(batch), {"scale": self.scale.item() * len(batch)})

    def illustrate(self, model, batch):
        rows = [[np.zeros((2, 2), np.float32)] for _ in batch.ids]
        return Illustration("darkness", "What it makes of pictures", "Nothing yet.", ["darkness"], rows)


def test_an_objective_brings_its_own_views_measures_and_pictures(tmp_path, monkeypatch):
    """A class of its own is all it takes: the run asks it."""
    monkeypatch.setattr("vitrail.training.objectives.mae.MaskedAutoencoder", Invariance)
    Invariance.seen.clear()
    result = fit(settings("mae", steps=4, evaluate_every=2), tmp_path / "run")
    assert set(Invariance.seen) == {("training", 1, (1, 8, 8)), ("validation", 1, (1, 8, 8))}
    assert result.metrics["n"] == 180
    assert result.metrics["scale"] == pytest.approx(1, abs=0.1)
    assert {"loss", "knn_top1"} < result.metrics.keys()
    assert "What it makes of pictures" in (tmp_path / "run" / "report.html").read_text()
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    validations = [record for record in records if record["kind"] == "val"]
    assert all(record["n"] == 180 and "scale" in record for record in validations)
    assert [record["step"] for record in validations] == [2, 4]


def test_the_run_names_no_objective():
    said = (ROOT / "vitrail" / "train.py").read_text()
    assert [name for name in OBJECTIVES if re.search(rf"\b{name}\b", said)] == []


def test_configurations_survive_json():
    for name in OBJECTIVES:
        config = settings(name, masked_patch=MaskedPatchConfig(target="pixels", fraction=0.15))
        assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_the_command_says_what_came_of_it_and_what_is_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--objective", "mae", "--mae.decoder-width", "16", "--mae.decoder-depth", "1", "--mae.decoder-heads", "2"]
    main(["train", "digits", *flags, "--steps", "4", "--evaluate-every", "4", "--model.depth", "1", "--out", "run"])
    said = capsys.readouterr()
    assert "objective mae: labels are not used" in said.err
    assert re.search(r"step 4: validation loss \d\.\d{4}, kNN \d+\.\d\d% of 180", said.err)
    assert re.search(r"test loss \d\.\d{4} over 180 images, 0 skipped; \d+\.\d\d% right by their nearest", said.out)
    assert "next:   vitrail finetune run --data digits" in said.out
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--out", "run", "--resume", "--mae.fraction", "0.5"])
    assert stopped.value.code == 2
    assert "--mae.fraction" in capsys.readouterr().err


def test_masks_of_validation_are_its_own():
    """The same at every validation, and none of those that training draws."""
    run = trainer(settings("mae"))
    drawn: list[float] = []
    run.objective.register_forward_pre_hook(lambda *_: drawn.append(torch.rand(1).item()))
    batches = [some_batch(seed=seed) for seed in range(3)]
    for _ in range(2):
        validation.validate(run.objective, run.model, batches, torch.device("cpu"), seed=0)
    for batch in batches:
        run.step(iter([batch]))
    assert drawn[:3] == drawn[3:6]
    assert len({*drawn[:3], *drawn[6:]}) == 6


class Brightness(Objective):
    """The mean of the pixels; notes whether anything was in training mode."""

    def forward(self, model, batch):
        self.modes = model.training, self.training
        return Losses(batch.images.mean(), len(batch), {"most": batch.images.amax(dim=(1, 2, 3)).sum().item()})


def test_a_validation_is_a_mean_over_samples_and_drops_nothing():
    objective, model = Brightness().train(), trainer(settings("mae")).model.train()
    batches = [some_batch(count=count, seed=count) for count in (5, 1, 3)]
    found = validation.validate(objective, model, batches, torch.device("cpu"), seed=0)
    images = torch.cat([batch.images for batch in batches])
    assert found["n"] == 9
    assert found["loss"] == pytest.approx(images.mean().item(), abs=1e-6)
    assert found["most"] == pytest.approx(images.amax(dim=(1, 2, 3)).mean().item(), abs=1e-6)
    assert objective.modes == (False, False)
    assert (model.training, objective.training) == (True, True), "left as they were"
