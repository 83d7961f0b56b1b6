"""Trains a model of your own in our loop, with its schedule, snapshots that can be resumed, and metrics.

    python examples/own_model.py FOLDER

It trains on the embedded digits (pip install "vitrail[demo]"), takes a few seconds, and writes FOLDER/best.safetensors.
Our loop needs of a model only that it turns images [batch, channels, rows, columns] into logits [batch, classes], and
that its `config` says these sizes. Bundles, export and inspection are for models of ours.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import vitrail
from vitrail.config import ModelConfig, ScheduleConfig
from vitrail.data import open_data
from vitrail.data.loader import EvaluationLoader, TrainingLoader
from vitrail.evaluation.measure import measure
from vitrail.tasks import Meaning, task
from vitrail.tasks.base import LossSettings
from vitrail.training.learner import Learner
from vitrail.training.loop import Trainer
from vitrail.training.objectives.supervised import Supervised
from vitrail.training.progress import Reporter

SIDE, STEPS = 8, 200


class ConvNet(nn.Sequential):
    """A small network of convolutions."""

    def __init__(self, config: ModelConfig):
        super().__init__(
            nn.Conv2d(config.channels, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (SIDE // 4) ** 2, config.num_classes),
        )
        self.config = config


def main(folder: Path) -> float:
    """Trains the network, or goes on where an earlier call was stopped, and returns its accuracy on the test split."""
    config = vitrail.recipe("digits").with_(
        model=ModelConfig(image_size=SIDE, patch_size=SIDE, channels=1, num_classes=10),
        schedule=ScheduleConfig("cosine", warmup_steps=10),
        epochs=None,
        steps=STEPS,
    )
    source = open_data(config.data)
    training, meaning = source.split("train"), Meaning(source.classes)
    torch.manual_seed(config.seed)
    model: Any = ConvNet(config.model)

    def batches(position: int) -> Any:
        """Yields batches without end, from a position in the data on: that is how a run is resumed."""
        return iter(
            TrainingLoader(
                training,
                config.transform,
                config.preprocessing,
                batch_size=config.batch_size,
                seed=config.seed,
                num_classes=len(source.classes),
                position=position,
            )
        )

    def evaluate(split: str) -> dict[str, Any]:
        """Measures the network on a split: top1, top5, loss and so on."""
        loader = EvaluationLoader(source.split(split), config.preprocessing, batch_size=256)
        return measure(model, loader, task("classification").meter(meaning), torch.device("cpu")).result()

    folder.mkdir(parents=True, exist_ok=True)
    best = folder / "best.safetensors"
    trainer = Trainer(
        config=config,
        run=folder,
        learner=Learner(model, Supervised("classification", LossSettings("softmax", len(source.classes)))),
        total=STEPS,
        batches=batches,
        evaluate=lambda learner: {name: each for name, each in evaluate("val").items() if name != "per_class"},
        keep_best=lambda learner, result: save_file(learner.model.state_dict(), best),
        epoch_samples=len(training),
    )
    for line in trainer.resume():
        print(line)
    with Reporter(folder, trainer.total, trainer.progress.step, task("classification").meter) as reporter:
        trainer.fit(reporter)

    model.load_state_dict(load_file(best))
    result = evaluate("test")
    print(
        f"test accuracy {result['top1']:.2%} over {result['n']} images; the metrics are in {folder / 'metrics.jsonl'}"
    )
    return result["top1"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
