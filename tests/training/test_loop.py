"""The loop: it learns, accumulates, averages, stops on nonsense, keeps the best, lists bad images."""

import itertools
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
from vitrail.process_group import ProcessGroup
from vitrail.tasks.base import LossSettings
from vitrail.train import fit
from vitrail.training.learner import Learner
from vitrail.training.loop import StepAverages, Trainer, autocast
from vitrail.training.objectives.supervised import Supervised
from vitrail.training.progress import Silent
from vitrail.training.snapshots import Window


def settings(**changes) -> TrainConfig:
    """The small run of the kill tests, shorter."""
    base = {"steps": 20, "evaluate_every": 10, "snapshot_every": 10, "ema": 0.0, "accumulate": 1}
    return CONFIG.with_(**{**base, **changes})


def supervised(kind: str, outputs: int, weights: torch.Tensor | None = None, smoothing: float = 0.0) -> Supervised:
    return Supervised("classification", LossSettings(kind, outputs, weights, smoothing))


def trainer(config: TrainConfig, batch: Batch, objective=None, folder: Path = Path("unused")) -> Trainer:
    torch.manual_seed(0)
    model = create(config.model.with_(num_classes=10, dropout=0.0, drop_path=0.0))
    return Trainer(
        config=config,
        run=folder,
        learner=Learner(model, objective or supervised(config.objective, 10)),
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
@pytest.mark.parametrize("objective", ["softmax", "sigmoid"])
def test_accumulation_changes_nothing_but_rounding(soft, objective):
    """By SGD, whose steps are as long as the gradients are: AdamW's would hide a missing factor."""
    weights = []
    optimizer, schedule = OptimizerConfig("sgd", 0.1, 0.0, clip=0.0), ScheduleConfig("constant")
    for parts in (1, 2, 4):
        config = settings(accumulate=parts, batch_size=16, objective=objective, optimizer=optimizer, schedule=schedule)
        run = trainer(config, some_batch())
        for _ in range(3):
            run.step(iter([some_batch(soft=soft)]))
        weights.append(run.model.state_dict())
    for other in weights[1:]:
        for name, tensor in weights[0].items():
            assert torch.allclose(tensor, other[name], atol=2e-6), name


def test_hard_and_equal_soft_labels_give_the_same_loss():
    for kind in ("softmax", "sigmoid"):
        objective, model = supervised(kind, 10), trainer(settings(), some_batch()).model
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
    rising = ScheduleConfig("constant", warmup_steps=80)
    config = settings(steps=80, evaluate_every=10, optimizer=OptimizerConfig("adamw", 0.3), schedule=rising)
    fit(config, tmp_path / "run", report=False)
    found = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    validation = [each["top1"] for each in found if each["kind"] == "val"]
    assert validation[-1] < max(validation), "it was ruined indeed"
    best = vitrail.load(tmp_path / "run/best")
    assert best.card.provenance["metrics"]["val"]["top1"] == max(validation)
    last = vitrail.load(tmp_path / "run/bundle")
    assert not torch.equal(best.head.weight, last.head.weight), "the weights are not the last either"


@pytest.mark.parametrize("resumed", [False, True])
def test_the_first_of_the_highest_scores_is_kept(tmp_path, resumed):
    # A first score may be far below 0; of equal scores the lower loss counts, of equal losses the first.
    scores, losses, kept = [-5.0, 0.3, 0.9, 0.5, 0.9, 0.9], [5.0, 2.0, 1.0, 0.1, 1.0, 0.8], []

    def started() -> Trainer:
        run = trainer(settings(steps=6, evaluate_every=1, snapshot_every=1), some_batch(), folder=tmp_path)
        run.batches = lambda position: itertools.repeat(some_batch())
        run.evaluate = lambda _: {"top1": scores[run.progress.step - 1], "loss": losses[run.progress.step - 1]}
        run.keep_best = lambda _, result: kept.append((run.progress.step, result["top1"]))
        return run

    if resumed:
        half = started()
        half.total = 4
        half.fit(Silent())
    run = started()
    run.resume()
    run.fit(Silent())
    assert kept == [(1, -5.0), (2, 0.3), (3, 0.9), (6, 0.9)]


class RandomStream(Supervised):
    """Notes a random number of every step, as dropout and masks draw them."""

    def forward(self, model, batch):
        self.drawn = torch.rand(1).item()
        return super().forward(model, batch)


def drawn(rank: int, seed: int = 0, steps: int = 5) -> list[float]:
    run = trainer(settings(seed=seed), some_batch(), RandomStream("classification", LossSettings("softmax", 10)))
    run.processes, found = ProcessGroup(rank), []
    for _ in range(steps):
        run.step(iter([some_batch()]))
        found.append(run.objective.drawn)
    return found


def test_dropout_and_masks_differ_at_every_step_on_every_rank_and_by_seed():
    first, second, other = drawn(0), drawn(1), drawn(0, seed=1)
    assert len({*first, *second, *other}) == 15
    assert drawn(0) == first
    assert drawn(1) == second


@pytest.mark.parametrize("clip", [0.0, 0.5])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_fp16_takes_the_steps_of_float32(clip, optimizer):
    """The loss is scaled by 65536 on the way: the norm that clips and the gradients that count are without it."""
    config = settings(
        optimizer=OptimizerConfig(optimizer, 0.1 if optimizer == "sgd" else 1e-3, 0.0, clip=clip),
        schedule=ScheduleConfig("constant"),
    )
    found = {}
    for precision in ("float32", "fp16"):
        run = trainer(config.with_(precision=precision), some_batch())
        before = [parameter.detach().clone() for parameter in run.model.parameters()]
        numbers = run.step(iter([some_batch()]))
        moved = [parameter.detach() - start for parameter, start in zip(run.model.parameters(), before, strict=True)]
        found[precision] = numbers["gradient_norm"], torch.cat([each.flatten() for each in moved])
    assert found["fp16"][0] == pytest.approx(found["float32"][0], rel=0.01)
    assert found["float32"][0] > 0.5, "there is something to clip"
    difference = (found["fp16"][1] - found["float32"][1]).norm() / found["float32"][1].norm()
    assert 0 < difference < 0.05, "half precision, and no more than that"
    if clip and optimizer == "sgd":
        assert found["fp16"][1].norm().item() == pytest.approx(0.1 * clip, rel=1e-3)


def test_fp16_leaves_out_a_step_whose_gradients_overflow():
    run = trainer(settings(precision="fp16"), some_batch())
    run.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    run.step(iter([some_batch()]))
    assert run.scaler.get_scale() < 2.0**60
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_fp16_goes_on_with_the_loss_scale_it_had(tmp_path):
    def started() -> Trainer:
        run = trainer(settings(precision="fp16", steps=6, snapshot_every=3), some_batch(), folder=tmp_path)
        run.batches = lambda position: itertools.repeat(some_batch())
        run.evaluate = None
        return run

    first = started()
    first.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)  # overflows, and is halved each time
    first.total = 3
    first.fit(Silent())
    again = started()
    again.resume()
    assert again.scaler.state_dict() == first.scaler.state_dict()
    assert again.scaler.get_scale() == 2.0**57


def test_the_sigmoid_loss_is_summed_over_classes_and_averaged_over_samples():
    model, batch = trainer(settings(), some_batch()).model, some_batch()
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter)
    with torch.no_grad():
        found = supervised("sigmoid", 10)(model, batch).loss.item()
        logits = model(batch.images).double()
    each = [
        sum(math.log1p(math.exp(-x if index == label else x)) for index, x in enumerate(row))
        for row, label in zip(logits.tolist(), batch.targets.tolist(), strict=True)
    ]
    assert found == pytest.approx(sum(each) / len(each), rel=1e-5)


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


@pytest.mark.parametrize(
    ("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_precisions_round_as_their_names_say(precision, dtype):
    with autocast(torch.device("cpu"), precision):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


class Modes(Supervised):
    """Notes whether the model was in training mode."""

    def forward(self, model, batch):
        self.found = model.training, self.training
        return super().forward(model, batch)


def test_every_step_is_in_training_mode_whatever_was_before():
    run = trainer(settings(), some_batch(), Modes("classification", LossSettings("softmax", 10)))
    for _ in range(2):
        run.learner.model.eval()
        run.objective.eval()
        run.step(iter([some_batch()]))
        assert run.objective.found == (True, True)


def test_a_validation_with_averaged_weights_leaves_the_run_as_it_was():
    run = trainer(settings(ema=0.9), some_batch())
    for _ in range(3):
        run.step(iter([some_batch()]))
    before = {name: tensor.clone() for name, tensor in run.learner.state_dict().items()}
    averaged = {name: tensor.clone() for name, tensor in run.average.weights.items()}
    with run.finished() as learner:
        for name, tensor in learner.state_dict().items():
            assert torch.equal(tensor, averaged[name]), name
    for name, tensor in run.learner.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert any(not torch.equal(tensor, averaged[name]) for name, tensor in before.items())


def test_the_average_of_a_run_by_hand():
    """Counted from 1: after the first step (1 + 1) / (10 + 1) of the old weights stay, after the second 3 / 12."""
    run = trainer(settings(ema=0.9), some_batch())
    expected = run.model.head.weight.detach().clone()
    for step in (1, 2):
        run.step(iter([some_batch()]))
        expected = expected.lerp(run.model.head.weight.detach(), 1 - (1 + step) / (10 + step))
        assert torch.allclose(run.average.weights["head.weight"], expected, atol=1e-7)


def test_a_record_is_of_all_steps_since_the_last():
    def numbers(loss: float, right: int, count: int, waited: float) -> dict:
        times = {"waited": waited, "seconds": 2.0}
        return {
            "loss": loss,
            "measures": {"accuracy": right},
            "count": count,
            "lr": loss,
            "gradient_norm": 1.0,
            **times,
        }

    meter = StepAverages(Window())
    meter.add(numbers(90.0, 1, 1, 1.0))
    meter.record(5, 0.1)
    for _ in range(2):  # neither record is of the steps before the last one
        meter.add(numbers(3.0, 2, 16, 0.5))
        meter.add(numbers(1.0, 4, 8, 0.0))
        record = meter.record(7, 0.5)
        assert (record["loss"], record["accuracy"], record["lr"]) == (2.0, 6 / 24, 1.0)
        assert (record["images_per_second"], record["waiting"]) == (6.0, 0.125)


def test_seconds_add_up_over_starts(tmp_path):
    first = trainer(settings(), some_batch(), folder=tmp_path)
    first.earlier = 100.0
    first.step(iter([some_batch()]))
    first.save()
    second = trainer(settings(), some_batch(), folder=tmp_path)
    second.resume()
    second.save()
    assert 100 < first.progress.seconds <= second.progress.seconds < 200


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_soft_targets_are_what_is_learned(kind):
    model, batch = trainer(settings(), some_batch()).model, some_batch()
    torch.nn.init.normal_(model.head.weight)
    batch.soft = torch.rand(16, 10, generator=torch.Generator().manual_seed(3))
    batch.soft /= batch.soft.sum(dim=1, keepdim=True)
    with torch.no_grad():
        found, logits = supervised(kind, 10)(model, batch), model(batch.images)
    chances = logits.log_softmax(dim=1) if kind == "softmax" else torch.nn.functional.logsigmoid(logits)
    wanted = -(batch.soft * chances).sum(dim=1)
    if kind == "sigmoid":
        wanted -= ((1 - batch.soft) * torch.nn.functional.logsigmoid(-logits)).sum(dim=1)
    assert found.loss.item() == pytest.approx(wanted.mean().item(), rel=1e-5)
    right = int((logits.argmax(dim=1) == batch.targets).sum())
    assert found.measures["accuracy"] == right
