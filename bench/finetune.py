"""The probe and what fine-tuning makes of it, on real weights: ten runs over seeds and subsets, with a verdict.

    python bench/finetune.py MODEL DATA [--runs 10] [--out DIR]

Each run is `vitrail finetune MODEL --data DATA` with another seed, another cut of the training data, and for half of
them a part of it alone. The two models of a run answer the same images, so they are compared by the images on which
they differ (an exact sign test): worse by more than chance is p below 0.05 against the final model.
"""

import argparse
import math
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from vitrail.checkpoints.load import load
from vitrail.data import match_classes
from vitrail.data.loader import EvaluationLoader
from vitrail.evaluation.measure import measure
from vitrail.run import open_splits
from vitrail.tasks.classification.meter import Accuracy
from vitrail.train import fit
from vitrail.training.progress import say
from vitrail.transfer import chosen_config, with_preprocessing

PART = 0.5
"""Of the training images, in every second run."""


def right(bundle: Path, config) -> dict[str, bool]:
    """Which images of the reported split a model gets right."""
    source = open_splits(config)
    model = load(bundle)
    assert model.card.preprocessing is not None
    split = source.split("test" if "test" in source.splits else "val")
    batches = EvaluationLoader(split, model.card.preprocessing, batch_size=32)
    accuracy = Accuracy(model.card.meaning, match_classes(model.card.label_names, source.classes))
    measure(model, batches, accuracy, torch.device("cpu"))
    return {name: label == predicted for name, label, predicted, _ in accuracy.kept}


def worse_by_chance(gained: int, lost: int) -> float:
    """How often so many of the images that changed are lost, or more, where gaining and losing are alike."""
    changed = gained + lost
    return sum(math.comb(changed, each) for each in range(lost, changed + 1)) / 2**changed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out or Path(tempfile.mkdtemp(prefix="vitrail-finetune-"))
    base = with_preprocessing(chosen_config(arguments.model, arguments.data), say)
    samples = len(open_splits(base).split("train"))
    print("run  train    probe    final     n       kept gained  lost      p  seconds")
    verdicts = []
    for number in range(arguments.runs):
        size = round(PART * samples) if number % 2 else None
        config = base.with_(seed=number, data=replace(base.data, split_seed=number, train_size=size))
        began = time.monotonic()
        result = fit(config, out / str(number), report=False)
        seconds = time.monotonic() - began
        probe, final = right(out / str(number) / "probe", config), right(out / str(number), config)
        gained = sum(final[name] and not probe[name] for name in final)
        lost = sum(probe[name] and not final[name] for name in final)
        p = worse_by_chance(gained, lost)
        verdicts.append(p)
        print(
            f"{number:>3} {len(open_splits(config).split('train')):>6} {sum(probe.values()) / len(probe):>8.2%} "
            f"{sum(final.values()) / len(final):>8.2%} {len(final):>5} {result.metrics['kept']:>10} {gained:>6} "
            f"{lost:>5} {p:>6.3f}  {seconds:.0f}",
            flush=True,
        )
    bad = sum(p < 0.05 for p in verdicts)
    print(f"the final model is worse than the probe by more than chance in {bad} of {len(verdicts)} runs")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
