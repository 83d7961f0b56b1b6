"""Which of the two usual means and deviations weights were trained with, where they do not say: both are tried on
labelled training images, and one is chosen where the difference is beyond chance."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoints.preprocessing import NAMED, normalised, words
from vitrail.config import Preprocessing
from vitrail.data import Split
from vitrail.data.loader import EvaluationLoader
from vitrail.evaluation.features import counted, extract
from vitrail.evaluation.few_shot import draw
from vitrail.models.build import Model
from vitrail.random_stream import permutation
from vitrail.tasks import task
from vitrail.tasks.classification import top1
from vitrail.tasks.classification.closed_form import leave_one_out, signs

SAMPLES = 256
"""Images that are tried at most, or a few more: four of each of so many classes."""
LEAST = 4
"""Images of a class: fewer cannot be left out one by one."""
CHANCE = 0.01
"""A difference that chance alone makes less often than this is taken for one."""
FLIPS = 10_000

Outcome = tuple[Tensor, Tensor]
"""Of every image: whether it was right, and how far off it was."""
Judge = Callable[[EvaluationLoader], Outcome]
"""Images -> how well the model does on them."""


def by_features(model: Model, device: torch.device) -> Judge:
    """Judge a model without a head: by a ridge on its features, asked of each image when trained on the others."""

    def judge(loader: EvaluationLoader) -> Outcome:
        found = extract(model, counted(loader, "trying a preprocessing", len(loader.split), after=1.0), device)
        if not len(found):
            return torch.empty(0, dtype=torch.bool), torch.empty(0, dtype=torch.float64)
        strata = task(loader.split.task).target.strata(found.targets.numpy())
        _, labels = torch.from_numpy(strata).unique(return_inverse=True)
        classes = int(labels.max()) + 1
        outcomes = []
        for _, scores, own in leave_one_out(found.values, labels, classes):
            outcomes.append((top1.right(scores, own), (scores - signs(own, classes)).square().mean(dim=1)))
        return min(outcomes, key=lambda outcome: float(outcome[1].mean()))

    return judge


def by_head(model: Model, mapping: np.ndarray | None, device: torch.device) -> Judge:
    """Judge a model by what it says itself. `mapping`: the source's label -> the model's."""

    @torch.inference_mode()
    def judge(loader: EvaluationLoader) -> Outcome:
        right, losses = [torch.empty(0, dtype=torch.bool)], [torch.empty(0)]
        for batch in counted(loader, "trying a preprocessing", len(loader.split), after=1.0):
            if len(batch):
                logits = model(batch.images.to(device)).float().cpu()
                labels = batch.targets if mapping is None else torch.from_numpy(mapping)[batch.targets]
                right.append(top1.right(logits, labels))
                losses.append(F.cross_entropy(logits, labels, reduction="none"))
        return torch.cat(right), torch.cat(losses).double()

    return judge


def sample(training: Split, few_of_each: bool = True) -> Split:
    """The images to try it on: evenly of each class (of other targets: of each stratum), or any that have a
    target."""
    labels = torch.from_numpy(np.asarray(training.strata))
    known = (labels >= 0).nonzero()[:, 0]
    if not few_of_each:
        return training.subset(known[torch.from_numpy(permutation(len(known), "tried", 0)[:SAMPLES].copy())].numpy())
    counts = labels[known].bincount()
    classes = (counts >= LEAST).nonzero()[:, 0]
    classes = classes[torch.from_numpy(permutation(len(classes), "tried", 0)[: SAMPLES // LEAST].copy())]
    known = known[torch.isin(labels[known], classes)]
    if len(classes) < 2:
        return training.subset([])
    return training.subset(known[draw(labels[known], max(LEAST, SAMPLES // len(classes)), 0)].numpy())


def choose(own: Preprocessing, images: Split, judge: Judge, workers: int | None = None) -> tuple[Preprocessing, str]:
    """The better preprocessing for a model, and a sentence that says which it is and by how much. `own` is what stays
    where it cannot be told: the difference between the candidates is in mean and std alone."""
    other = _other(own)
    if other is None or len(images) < LEAST:
        return own, f"the weights carry no preprocessing, and nothing tells it; assumed {words(own)}"
    results = {}
    for candidate in (own, other):
        results[candidate] = judge(EvaluationLoader(images, candidate, batch_size=32, workers=workers))
    (_, mine), (_, theirs) = results.values()
    better = own if float(mine.mean()) <= float(theirs.mean()) else other
    worse = other if better == own else own
    told = chance(mine - theirs) < CHANCE if len(mine) else False
    shown = " against ".join(
        f"{float(right.double().mean()):.1%} right, mean error {float(error.mean()):.3f}"
        for right, error in (results[better], results[worse])
    )
    tried = f"the weights carry no preprocessing; tried both usual ones on {len(mine):,} training images: "
    if told:
        return better, f"{tried}{shown} with {normalised(worse)}; took {words(better)}"
    return own, f"{tried}{shown} with {normalised(worse)} does not tell; assumed {words(own)}"


def chance(differences: Tensor) -> float:
    """How often the mean of paired differences is so far from 0 when the sign of each is a toss."""
    seen = differences.numpy()
    tosses = np.random.Generator(np.random.PCG64(0)).integers(0, 2, (FLIPS, len(seen))) * 2 - 1
    far = np.abs(tosses @ seen) >= abs(seen.sum()) - 1e-12
    return (1 + int(far.sum())) / (1 + FLIPS)


def _other(own: Preprocessing) -> Preprocessing | None:
    """The same, with the mean and deviation of the other usual candidate; None where there is no other."""
    usual = [(facts["mean"], facts["std"]) for facts in NAMED.values()]
    if (own.mean, own.std) not in usual:
        return None
    mean, std = next(each for each in usual if each != (own.mean, own.std))
    return replace(own, mean=mean, std=std)
