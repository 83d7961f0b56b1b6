"""Finds out which of the two usual means and deviations a model was trained with, if its weights do not say.

Both are tried on labelled training images. The other one is taken only if it does better by more than chance.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoints.preprocessing import NAMED, as_words, normalised
from vitrail.config import Preprocessing
from vitrail.data import Split
from vitrail.data.loader import EvaluationLoader
from vitrail.evaluation.features import counted, extract
from vitrail.evaluation.few_shot import draw_shots
from vitrail.models.build import Model
from vitrail.random_stream import permutation
from vitrail.tasks import task
from vitrail.tasks.base import FeatureSet
from vitrail.tasks.classification import top1
from vitrail.tasks.classification.closed_form import leave_one_out_scores, signs

SAMPLES = 256
"""About how many images are tried: four of each class, of at most a quarter as many classes."""
_PICTURES = 32
"""About how many images are tried where each has many parts with a class, such as patches of a mask."""
LEAST = 4
"""A class must have at least this many images: of fewer none can be left out and still be learned."""
CHANCE = 0.01
"""A difference counts if chance would produce it with a probability below this."""
FLIPS = 10_000
"""How many random signs of the differences are tried to compute that probability."""

Outcome = tuple[Tensor, Tensor]
"""For each image: whether the answer was right, and how far off it was."""
LoaderJudge = Callable[[EvaluationLoader], Outcome]
"""Measures how well a model does on images as a loader prepares them."""


def by_features(model: Model, device: torch.device) -> LoaderJudge:
    """Makes a judge for a model without a head: a ridge on its features classifies each image after learning from all
    others."""

    def judge(loader: EvaluationLoader) -> Outcome:
        found = extract(model, counted(loader, "trying a preprocessing", len(loader.split), after=1.0), device)
        if not len(found):
            return torch.empty(0, dtype=torch.bool), torch.empty(0, dtype=torch.float64)
        asked = task(loader.split.task)
        parts = asked.head.examples(FeatureSet(found.values, found.targets))
        if parts is None:
            return _ridge_outcome(found.values, torch.from_numpy(asked.target.strata(found.targets.numpy())))
        right, errors = _ridge_outcome(parts.features, parts.labels)
        if len(right) < len(parts.owners):  # of very many parts only some were judged
            return right, errors
        mine = [parts.owners == owner for owner in parts.owners.unique()]
        return (
            torch.stack([right[each].double().mean() for each in mine]),
            torch.stack([errors[each].mean() for each in mine]),
        )

    return judge


def _ridge_outcome(features: Tensor, groups: Tensor) -> Outcome:
    """Judges each example by a ridge that learns from all others, with the strength that does best. groups: what each
    is an example of, any integers."""
    _, labels = groups.unique(return_inverse=True)
    classes = int(labels.max()) + 1
    outcomes = []
    for _, scores, own in leave_one_out_scores(features, labels, classes):
        outcomes.append((top1.right(scores, own), (scores - signs(own, classes)).square().mean(dim=1)))
    return min(outcomes, key=lambda outcome: float(outcome[1].mean()))


def by_head(model: Model, mapping: np.ndarray | None, device: torch.device) -> LoaderJudge:
    """Makes a judge for a model with a head. mapping: the model's class for each class of the source; None: the
    same."""

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
    """Chooses the images to try a preprocessing on.

    Args:
        training: the split to choose from.
        few_of_each: whether to take equally many of each class (or stratum, for other targets); if not, any with a
            target.
    """
    labels = torch.from_numpy(np.asarray(training.strata))
    known = (labels >= 0).nonzero()[:, 0]
    in_pixels = task(training.task).target.in_pixels
    if in_pixels or not few_of_each:
        most = _PICTURES if in_pixels else SAMPLES
        return training.subset(known[torch.from_numpy(permutation(len(known), "tried", 0)[:most].copy())].numpy())
    counts = labels[known].bincount()
    classes = (counts >= LEAST).nonzero()[:, 0]
    classes = classes[torch.from_numpy(permutation(len(classes), "tried", 0)[: SAMPLES // LEAST].copy())]
    known = known[torch.isin(labels[known], classes)]
    if len(classes) < 2:
        return training.subset([])
    return training.subset(known[draw_shots(labels[known], max(LEAST, SAMPLES // len(classes)), 0)].numpy())


def choose_normalisation(
    own: Preprocessing, images: Split, judge: LoaderJudge, workers: int | None = None
) -> tuple[Preprocessing, str]:
    """Chooses between the two usual preprocessings, which differ in mean and deviation.

    Args:
        own: the assumed preprocessing, which is kept if the difference is not beyond chance.
        images: the images to try them on.
        judge: measures the model.
        workers: threads that read the images.

    Returns:
        The preprocessing, and a sentence that says how it was chosen.
    """
    other = _other(own)
    if other is None or len(images) < LEAST:
        return own, f"the weights carry no preprocessing, and nothing tells it; assumed {as_words(own)}"
    results = {}
    for candidate in (own, other):
        results[candidate] = judge(EvaluationLoader(images, candidate, batch_size=32, workers=workers))
    (_, mine), (_, theirs) = results.values()
    better = own if float(mine.mean()) <= float(theirs.mean()) else other
    worse = other if better == own else own
    beyond_chance = chance(mine - theirs) < CHANCE if len(mine) else False
    shown = "; ".join(
        f"{normalised(each)} gives {float(right.double().mean()):.1%} right, mean error {float(error.mean()):.3f}"
        for each, (right, error) in ((better, results[better]), (worse, results[worse]))
    )
    tried = f"the weights carry no preprocessing; tried both usual ones on {len(mine):,} training images: {shown}; "
    if beyond_chance:
        return better, f"{tried}took {as_words(better)}"
    return own, f"{tried}the difference may be chance; assumed {as_words(own)}"


def chance(differences: Tensor) -> float:
    """Computes the probability that the mean of paired differences is this far from 0 if the sign of each is random."""
    seen = differences.numpy()
    tosses = np.random.Generator(np.random.PCG64(0)).integers(0, 2, (FLIPS, len(seen))) * 2 - 1
    far = np.abs(tosses @ seen) >= abs(seen.sum()) - 1e-12
    return (1 + int(far.sum())) / (1 + FLIPS)


def _other(own: Preprocessing) -> Preprocessing | None:
    """Returns the preprocessing with the other usual mean and deviation; None if its own are not usual ones."""
    usual = [(facts["mean"], facts["std"]) for facts in NAMED.values()]
    if (own.mean, own.std) not in usual:
        return None
    mean, std = next(each for each in usual if each != (own.mean, own.std))
    return replace(own, mean=mean, std=std)
