"""`vitrail evaluate MODEL --data SRC --folds K`: cross-validation of a head in closed form on a data set."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitrail.cli import emit_json, note, together
from vitrail.cli.weights import NamedWeights
from vitrail.errors import UserError

if TYPE_CHECKING:
    from vitrail.data import Source
    from vitrail.evaluation.cross_validation import CrossValidation


@dataclass(frozen=True)
class Asked:
    """What the flags of `evaluate` say that concerns the folds."""

    model: str
    data: str
    split: str | None
    folds: int
    batch_size: int
    workers: int | None
    device: str


def cross_validate(asked: Asked, weights: NamedWeights, json: bool) -> None:
    """Compute the features of a data set once, then solve and measure a head for each fold, and tell."""
    from vitrail.checkpoints.load import load
    from vitrail.cli.evaluate import labelled, progress
    from vitrail.data import open_source
    from vitrail.data.loader import EvaluationLoader
    from vitrail.evaluation import cross_validation, normalisation
    from vitrail.evaluation.features import extract
    from vitrail.evaluation.features import joined as one_of_all
    from vitrail.models.device import choose_device
    from vitrail.processes import joined, local_device

    with together.alike():
        if asked.folds < 2:
            raise UserError(f"--folds {asked.folds}: at least 2 are needed, one to learn from; 5 is usual")
        where = local_device(choose_device(asked.device))
    with joined(where) as these:
        model = these.all_or_none(lambda: load(asked.model, **weights.options())).to(where)
        source = these.all_or_none(lambda: open_source(asked.data))
        name = asked.split or "all"
        split, left_out = these.all_or_none(lambda: labelled(source, name, single_class=True))
        card = model.card
        preprocessing = card.preprocessing
        assert preprocessing is not None
        if card.assumed:
            images, judge = normalisation.sample(split), normalisation.by_features(model, where)
            card.settle(*these.first_alone(lambda: normalisation.choose(preprocessing, images, judge, asked.workers)))
        loader = EvaluationLoader(
            split,
            card.preprocessing or preprocessing,
            batch_size=asked.batch_size,
            workers=asked.workers,
            rank=these.rank,
            world_size=these.count,
        )
        batches = progress(loader, len(loader), "features") if these.first else loader
        mine = these.all_or_none(lambda: extract(model, batches, where))
        features = mine if these.count == 1 else one_of_all(these.gather(mine), split.ids)

        def tell() -> None:
            if len(features) < asked.folds:
                raise UserError(
                    f"{asked.data}, {name}: {len(features)} images can be used, fewer than --folds {asked.folds}"
                )
            for line in [*card.notes, *source.notes, *left_out, *_rare(features.targets.tolist(), source, asked.folds)]:
                note(line)
            result = cross_validation.cross_validate(features, source.classes, asked.folds)
            if json:
                emit_json({"split": name, **result.to_json()})
            else:
                _show(f"{asked.data}, {name}", result)

        these.first_alone(tell)


def _rare(labels: Iterable[int], source: "Source", folds: int) -> list[str]:
    from collections import Counter

    counts = Counter(labels)
    few = [label for label in counts if counts[label] < folds]
    if not few:
        return []
    least = min(few, key=lambda label: counts[label])
    short = f"{len(few)} of {len(counts)} classes have fewer images than folds"
    return [f"{short}, {source.classes[least]!r} only {counts[least]}: not every fold asks of them"]


def _show(title: str, result: "CrossValidation") -> None:
    from vitrail.evaluation.cross_validation import METHOD

    document = result.to_json()
    print(f"{title}: {document['n']:,} images, {result.skipped:,} skipped")
    print(f"{document['folds']} folds: accuracy {result.mean:.2%} ± {result.std:.2%}, {METHOD} on the model's features")
    print(f"balanced accuracy {document['balanced_accuracy']:.2%}")
    for number, fold in enumerate(result.folds, start=1):
        print(f"  fold {number}: {fold.top1:.2%} of {fold.n:,}, learned from {fold.learned_from:,}")
