"""Defines the paper's studies at a scale that runs on any machine: data size, compute, positions, pooling, shape."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

from vitrail.config import ModelConfig
from vitrail.drawing.plots import Theme
from vitrail.models.cost import cost
from vitrail.studies.comparison import ABOVE, ALIKE, BELOW, UNTOLD, Comparison, Contrast, Point, verdict
from vitrail.studies.figures import dots, lines
from vitrail.studies.setting import Setting
from vitrail.studies.study import Comparisons, Study, StudyOutcome, StudyRow, as_percent


def data_size(setting: Setting) -> Study:
    """Compares a ViT, a hybrid and a ResNet of similar cost by the number of training images (Figures 3 and 4)."""
    models = {
        "ViT": setting.model(),
        "hybrid": setting.model(stages=(1, 1), stem_width=32, patch_size=1, depth=2),
        "ResNet": setting.model(family="resnet", stages=(3, 2), stem_width=32),
    }
    sizes = setting.sizes((200, 1000) if setting.quick else (500, 2000, 8000))
    samples = 16_000 if setting.quick else 128_000
    rows = [
        StudyRow({"model": name, "training images": size}, setting.config(model, seed, samples, train_size=size))
        for size in sizes
        for name, model in models.items()
        for seed in range(setting.seeds)
    ]

    def pairs(outcome: StudyOutcome) -> dict[tuple[str, str, int], Contrast]:
        """Compares ViT with the ResNet at the fewest and the most images, and the hybrid with ViT at every size."""
        found, sizes = _by_size(outcome), _sizes(outcome)
        chosen = [("ViT", "ResNet", size) for size in dict.fromkeys((sizes[0], sizes[-1]))]
        chosen += [("hybrid", "ViT", size) for size in sizes]
        return {
            (one, other, size): Contrast.between(found[one, size], found[other, size])
            for one, other, size in chosen
            if (one, size) in found and (other, size) in found
        }

    def name(one: str, other: str, size: int) -> str:
        return f"{one} beside {other}, {size:,} images"

    def conclude(outcome: StudyOutcome, compared: Comparisons) -> list[str]:
        found, sizes, said = _by_size(outcome), _sizes(outcome), []
        for size in dict.fromkeys((sizes[0], sizes[-1])):
            ranked = sorted(((p, n) for (n, s), p in found.items() if s == size), key=lambda each: -each[0].mean)
            said.append(f"With {size:,} images: " + ", ".join(f"{n} {as_percent(p)}" for p, n in ranked) + ".")
        ends = [compared.get(name("ViT", "ResNet", size)) for size in (sizes[0], sizes[-1])]
        if len(sizes) > 1 and ends[0] and ends[1]:
            few, many = ends[0], ends[1]
            said.append(
                f"The paper finds ViT below ResNets on little data: with {sizes[0]:,} images it is {few.word} the "
                f"ResNet here, {few.points}, so that {verdict(BELOW, few.word)} at this scale."
            )
            far = "" if many.word == ABOVE else "; this is far from 300 million images"
            said.append(
                f"It finds ViT above them once there is enough: with all {sizes[-1]:,} images it is {many.word} the "
                f"ResNet here, {many.points}, so that {verdict(ABOVE, many.word)}{far}."
            )
        hybrids = {size: compared[key] for size in sizes if (key := name("hybrid", "ViT", size)) in compared}
        if hybrids:
            words = [each.word for each in hybrids.values()]
            said.append(
                f"It finds hybrids above ViT at small budgets: here the hybrid is above it at {words.count(ABOVE)} of "
                f"{len(words)} sizes ("
                + "; ".join(f"{each.points} with {size:,} images" for size, each in hybrids.items())
                + f"), so that {verdict(ABOVE, *words)}."
            )
        return said

    return Study(
        "data-size",
        "Accuracy against the number of training images",
        "How much data does a Vision Transformer need, beside a hybrid and a ResNet of like cost? Each training sees "
        f"{samples:,} images in all, some of them many times where there are few (the paper's Figures 3 and 4).",
        tuple(rows),
        lambda outcome, theme: lines(_lines(outcome, "model", "training images"), "training images", theme),
        lambda outcome: {name(*key): contrast for key, contrast in pairs(outcome).items()},
        conclude,
    )


def compute(setting: Setting) -> Study:
    """Compares accuracy by the cost of training, for ViTs, hybrids and ResNets of several sizes (Figure 5)."""
    models = {
        "ViT": [setting.model(width=width, num_heads=width // 24, mlp_dim=4 * width) for width in (48, 96, 144)],
        "hybrid": [
            setting.model(stages=(1, 1), stem_width=32, patch_size=1, depth=2, width=width, num_heads=width // 24)
            for width in (48, 96, 144)
        ],
        "ResNet": [
            setting.model(family="resnet", stages=stages, stem_width=32) for stages in ((1, 1), (3, 2), (3, 3, 2))
        ],
    }
    samples = 14_000 if setting.quick else 96_000
    rows = [
        StudyRow({"model": name, "megaMACs": round(cost(model).macs / 1e6, 2)}, setting.config(model, seed, samples))
        for name, sizes in models.items()
        for model in sizes
        for seed in range(setting.seeds)
    ]

    def against(outcome: StudyOutcome) -> dict[str, list[tuple[float, Point]]]:
        """Returns the points of each kind of model by the cost of training, in teraFLOPs."""
        series = _lines(outcome, "model", "megaMACs")
        return {name: [(6e-6 * x * samples, point) for x, point in points] for name, points in series.items()}

    def contrasts(outcome: StudyOutcome) -> dict[str, Contrast]:
        """Compares each ViT and hybrid with the ResNet of the nearest cost."""
        series = against(outcome)
        return {
            f"{name} of {x:.3g} teraFLOPs beside the nearest ResNet": Contrast.between(
                point, _nearest(x, series["ResNet"])
            )
            for name in ("ViT", "hybrid")
            for x, point in series.get(name, [])
            if "ResNet" in series
        }

    def conclude(outcome: StudyOutcome, compared: Comparisons) -> list[str]:
        said = [
            f"{name}: " + ", ".join(f"{as_percent(point)} at {x:,.3g} teraFLOPs" for x, point in points) + "."
            for name, points in against(outcome).items()
        ]
        for name in ("ViT", "hybrid"):
            beside = [each for key, each in compared.items() if key.startswith(f"{name} of")]
            if beside:
                words = [each.word for each in beside]
                counted = {word: words.count(word) for word in (ABOVE, ALIKE, BELOW, UNTOLD) if word in words}
                said.append(
                    f"Of {len(words)} {name} sizes, beside the ResNet of nearest cost: "
                    + ", ".join(f"{count} {word} it" for word, count in counted.items())
                    + f" ({'; '.join(each.points for each in beside)}). The paper, on far more data, finds ViT above "
                    "at every budget, and hybrids above ViT at the small ones."
                )
        return said

    return Study(
        "compute",
        "Accuracy against the cost of training",
        f"Which kind of model makes most of the same computation? Each training sees {samples:,} images; the cost is "
        "3 forward passes an image at 2 operations a multiply-add (the paper's Figure 5).",
        tuple(rows),
        lambda outcome, theme: lines(against(outcome), "teraFLOPs of the whole training", theme),
        contrasts,
        conclude,
    )


POSITIONS = [
    ("none", "stem"),
    ("learned", "stem"),
    ("learned", "every_layer"),
    ("learned", "every_layer_shared"),
    ("learned_2d", "stem"),
    ("learned_2d", "every_layer"),
    ("learned_2d", "every_layer_shared"),
    ("relative", "stem"),
    ("sincos", "stem"),
]
"""The kinds and places of Table 8, and the fixed sine and cosine positions of later work."""


def positions(setting: Setting) -> Study:
    """Compares position embeddings of each kind, added at each place (Table 8)."""
    samples = 12_000 if setting.quick else 64_000
    small: dict[str, Any] = {"patch_size": 4, "width": 64, "depth": 3, "mlp_dim": 256}
    rows = [
        StudyRow(
            {"positions": kind, "added at": where if kind != "relative" else "inside attention"},
            setting.config(setting.model(positions=kind, positions_at=where, **small), seed, samples),
        )
        for kind, where in POSITIONS
        for seed in range(setting.seeds)
    ]

    def beside(outcome: StudyOutcome, kind: str) -> dict[str, Contrast]:
        """Compares all others with one kind of positions that is added at the stem."""
        first = next(iter(outcome.points(positions=kind, **{"added at": "stem"})), None)
        others = [point for point in outcome.points() if point.factors["positions"] != "none" and point != first]
        return {f"{_where(each)} beside {kind}": Contrast.between(each, first) for each in others} if first else {}

    def conclude(outcome: StudyOutcome, compared: Comparisons) -> list[str]:
        without = outcome.point(positions="none")
        others = [point for point in outcome.points() if point.factors["positions"] != "none"]
        if not without or not others:
            return []
        best, worst = max(others, key=lambda p: p.mean), min(others, key=lambda p: p.mean)
        any_of = {_where(point): compared[f"{_where(point)} beside none"] for point in others}
        words = [each.word for each in any_of.values()]
        said = [f"Without positions {as_percent(without)}."]
        said.append(f"With them from {as_percent(worst)} ({_where(worst)}) to {as_percent(best)} ({_where(best)}).")
        said.append(
            f"The paper finds that having none is well below having any: here {words.count(ABOVE)} of {len(words)} are "
            f"above none (by the least, {_where(worst)}, {any_of[_where(worst)].points}), so that "
            f"{verdict(ABOVE, *words)}."
        )
        fixed, learned = [], []
        for point in others:
            if each := compared.get(f"{_where(point)} beside learned"):
                (fixed if point.factors["positions"] == "sincos" else learned).append((_where(point), each))
        if learned:
            apart = [f"{name} is {each.word} it, {each.points}" for name, each in learned if each.word != UNTOLD]
            widest = max((each.half_width or 0.0 for _, each in learned), default=0.0)
            said.append(
                "It finds the kinds and places alike: beside learned positions at the stem, "
                + ("; ".join(apart) if apart else f"none of the other {len(learned)} is told apart")
                + (f" (intervals up to ±{100 * widest:.1f} points)" if widest else "")
                + f", so that {verdict(ALIKE, *(each.word for _, each in learned))}."
            )
        for name, each in fixed:
            said.append(f"The fixed {name}, which the paper does not have, is {each.word} learned ones: {each.points}.")
        return said

    def draw(outcome: StudyOutcome, theme: Theme) -> bytes:
        """Draws the accuracy of each kind and place."""
        groups: dict[str, list[tuple[str, Point]]] = {}
        for point in outcome.points():
            groups.setdefault(str(point.factors["positions"]), []).append((_where(point), point))
        return dots(groups, theme)

    return Study(
        "positions",
        "Position embeddings of each kind, at each place",
        "Does it matter how a model is told where a patch was, or only that it is told? (The paper's Table 8.) Each "
        f"training sees {samples:,} images as 64 patches.",
        tuple(rows),
        draw,
        lambda outcome: {**beside(outcome, "none"), **beside(outcome, "learned")},
        conclude,
    )


def pooling(setting: Setting) -> Study:
    """Compares the class token with the average of the patches, at several learning rates (Figure 9)."""
    samples = 16_000 if setting.quick else 128_000
    rates = (3e-4, 1e-3, 3e-3) if setting.quick else (3e-4, 1e-3, 3e-3, 1e-2)
    kinds: dict[str, ModelConfig] = {
        "class token": setting.model(class_token=True, pooling="class", positions="learned"),
        "average": setting.model(class_token=False, pooling="average", positions="learned"),
    }
    rows = [
        StudyRow({"pooling": name, "learning rate": rate}, setting.config(model, seed, samples, lr=rate))
        for name, model in kinds.items()
        for rate in rates
        for seed in range(setting.seeds)
    ]

    def name(one: Point, other: Point) -> str:
        labels = (f"{each.factors['pooling']} at {each.factors['learning rate']:g}" for each in (one, other))
        return " beside ".join(labels)

    def contrasts(outcome: StudyOutcome) -> dict[str, Contrast]:
        """Compares every two points: the best are known only from the numbers, so any two might be compared."""
        return {name(one, other): Contrast.between(one, other) for one, other in combinations(outcome.points(), 2)}

    def conclude(outcome: StudyOutcome, compared: Comparisons) -> list[str]:

        def against(one: Point, other: Point) -> Comparison:
            """Returns the comparison of `one` with `other`, whichever comes first in its name."""
            if (found := compared.get(name(one, other))) is not None:
                return found
            found = compared[name(other, one)]
            return replace(found, difference=-found.difference)

        by_kind = {kind: outcome.points(pooling=kind) for kind in kinds}
        best = {kind: max(points, key=lambda point: point.mean) for kind, points in by_kind.items() if points}
        said = [
            f"{kind}: best at learning rate {point.factors['learning rate']:g}, {as_percent(point)}."
            for kind, point in best.items()
        ]
        if len(best) < 2:
            return said
        found = against(best["average"], best["class token"])
        said.append(
            f"The paper finds that both work as well once each has its own learning rate: at the best one the "
            f"average is {found.word} the class token here, {found.points}, so that {verdict(ALIKE, found.word)}."
        )
        if all(len(points) == len(rates) for points in by_kind.values()):
            fitting = {
                kind: [
                    float(each.factors["learning rate"])
                    for each in points
                    if each is best[kind] or against(each, best[kind]).word != BELOW
                ]
                for kind, points in by_kind.items()
            }
            one, other = map(set, fitting.values())
            # No rate in common: the kinds differ. Both best rates known and equal: they do not.
            held = "holds" if not one & other else "does not hold" if len(one | other) == 1 else "cannot be told"
            said.append(
                "It finds that they want different learning rates: here the best, and what is not told below it, is "
                + " and ".join(f"{_listed(rates)} for the {kind}" for kind, rates in fitting.items())
                + f", so that {held}."
            )
        return said

    return Study(
        "pooling",
        "Class token or average of the patches",
        "Is a token of its own better than the average of the patches, and do both want the same learning rate? "
        f"(The paper's Figure 9.) Each training sees {samples:,} images.",
        tuple(rows),
        lambda outcome, theme: lines(_lines(outcome, "pooling", "learning rate"), "learning rate", theme),
        contrasts,
        conclude,
    )


def shape(setting: Setting) -> Study:
    """Compares what more depth, more width or smaller patches bring (Figure 8)."""
    samples = 12_000 if setting.quick else 64_000
    changes: dict[str, list[tuple[str, ModelConfig]]] = {
        "depth": [(f"depth {d}", setting.model(depth=d)) for d in (2, 4, 8)],
        "width": [(f"width {w}", setting.model(width=w, num_heads=w // 24, mlp_dim=4 * w)) for w in (48, 96, 192)],
        "patch size": [(f"patch size {p}", setting.model(patch_size=p)) for p in (16, 8, 4)],
    }
    rows, seen = [], set()
    for axis, models in changes.items():
        for label, model in models:
            if model in seen:  # the model that all three axes have in common
                continue
            seen.add(model)
            factors: dict[str, str | int | float] = {
                "varied": axis if model != setting.model() else "nothing",
                "model": label if model != setting.model() else "depth 4, width 96, patch size 8",
                "megaMACs": round(cost(model).macs / 1e6, 2),
            }
            rows += [StudyRow(factors, setting.config(model, seed, samples)) for seed in range(setting.seeds)]

    def series(outcome: StudyOutcome) -> dict[str, list[tuple[float, Point]]]:
        """Returns the points of each axis by cost, with the model that all have in common."""
        common = outcome.points(varied="nothing")
        return {
            axis: sorted(
                ((float(point.factors["megaMACs"]), point) for point in [*outcome.points(varied=axis), *common]),
                key=lambda pair: pair[0],
            )
            for axis in changes
        }

    def gains(outcome: StudyOutcome) -> dict[str, Contrast]:
        """Returns for each axis the points gained by each doubling of the computation.

        Axes are compared by this because they differ in cost: four times as deep does not cost as much as four times as
        wide.
        """
        found = {}
        for axis, points in series(outcome).items():
            if len(points) == len(changes[axis]):
                (x0, first), (x1, last) = points[0], points[-1]
                weight = 1 / math.log2(x1 / x0)
                found[axis] = Contrast(((weight, last), (-weight, first)))
        return found

    def contrasts(outcome: StudyOutcome) -> dict[str, Contrast]:
        """Compares the gains of every two axes."""
        found = gains(outcome)
        return {
            f"{one} beside {other}, a doubling": found[one].minus(found[other])
            for one, other in combinations(("depth", "patch size", "width"), 2)
            if one in found and other in found
        }

    def conclude(outcome: StudyOutcome, compared: Comparisons) -> list[str]:
        said, found, ends = [], gains(outcome), series(outcome)
        for axis, gain in found.items():
            (x0, first), (x1, last) = ends[axis][0], ends[axis][-1]
            said.append(
                f"{axis}: {as_percent(first)} at {x0:g} megaMACs, {as_percent(last)} at {x1:g}: "
                f"{100 * gain.difference:+.1f} points for each doubling of the computation."
            )
        if len(found) == len(changes):
            told = {ABOVE: "told apart", BELOW: "told apart", ALIKE: "within a point", UNTOLD: "not told apart"}
            listed = "; ".join(
                f"{name.partition(',')[0]} {each.points}, {told[each.word]}" for name, each in compared.items()
            )
            said.append(
                "The paper finds depth to bring the most and width the least: what a doubling brings differs by "
                f"{listed}, so that {verdict(ABOVE, *(each.word for each in compared.values()))} here."
            )
        return said

    return Study(
        "shape",
        "Depth, width and patch size",
        f"Where is more computation best spent? (The paper's Figure 8.) Each training sees {samples:,} images.",
        tuple(rows),
        lambda outcome, theme: lines(series(outcome), "megaMACs an image", theme),
        contrasts,
        conclude,
    )


def _listed(rates: list[float]) -> str:
    """Lists learning rates in words."""
    return " or ".join(f"{rate:g}" for rate in rates)


def _where(point: Point) -> str:
    """Returns the kind of positions and where they are added, in words."""
    kind, where = str(point.factors["positions"]), str(point.factors["added at"])
    return kind if kind == "none" else f"{kind}, {where.replace('_', ' ')}"


def _lines(outcome: StudyOutcome, name: str, across: str) -> dict[str, list[tuple[float, Point]]]:
    """Returns for each value of the factor `name` its points by the factor `across`, in order."""
    series: dict[str, list[tuple[float, Point]]] = {}
    for point in outcome.points():
        series.setdefault(str(point.factors[name]), []).append((float(point.factors[across]), point))
    return {key: sorted(points, key=lambda pair: pair[0]) for key, points in series.items()}


def _sizes(outcome: StudyOutcome) -> list[int]:
    """Returns the numbers of training images, in order."""
    return sorted({int(point.factors["training images"]) for point in outcome.points()})


def _by_size(outcome: StudyOutcome) -> dict[tuple[str, int], Point]:
    """Returns the points by model and number of training images."""
    return {(str(p.factors["model"]), int(p.factors["training images"])): p for p in outcome.points()}


def _nearest(x: float, points: list[tuple[float, Point]]) -> Point:
    """Returns the point whose cost is nearest to `x`, in proportion."""
    return min(points, key=lambda pair: abs(pair[0] / x - 1))[1]


PAPER_STUDIES: dict[str, Callable[[Setting], Study]] = {
    "data-size": data_size,
    "compute": compute,
    "positions": positions,
    "pooling": pooling,
    "shape": shape,
}
"""The studies of this file by name."""
