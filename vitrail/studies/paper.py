"""The paper's studies at a scale that runs anywhere: data size, compute, positions, pooling, shape."""

import math
from collections.abc import Callable
from typing import Any

from vitrail.config import ModelConfig
from vitrail.drawing.plots import Theme
from vitrail.models.cost import cost
from vitrail.studies.figures import dots, lines
from vitrail.studies.setting import Setting
from vitrail.studies.study import (
    ABOVE,
    BELOW,
    LEVEL,
    UNTOLD,
    Outcome,
    Point,
    Row,
    Study,
    compare,
    level_with_best,
    percent,
    verdict,
)

FAMILIES = ("ViT", "hybrid", "ResNet")


def data_size(setting: Setting) -> Study:
    """Figures 3 and 4: accuracy against the number of training images, for three kinds of model of like cost."""
    models = {
        "ViT": setting.model(),
        "hybrid": setting.model(stages=(1, 1), stem_width=32, patch_size=1, depth=2),
        "ResNet": setting.model(family="resnet", stages=(3, 2), stem_width=32),
    }
    sizes = setting.sizes((200, 1000) if setting.quick else (500, 2000, 8000))
    samples = 16_000 if setting.quick else 128_000
    rows = [
        Row({"model": name, "training images": size}, setting.config(model, seed, samples, train_size=size))
        for size in sizes
        for name, model in models.items()
        for seed in range(setting.seeds)
    ]

    def conclude(outcome: Outcome) -> list[str]:
        found = _by(outcome, "training images", sizes, "model", FAMILIES)
        said = []
        for size in dict.fromkeys((sizes[0], sizes[-1])):
            ranked = sorted(found.get(size, {}).items(), key=lambda item: -item[1].mean)
            if ranked:
                said.append(f"With {size:,} images: " + ", ".join(f"{n} {percent(p)}" for n, p in ranked) + ".")
        ends = [found.get(size, {}) for size in (sizes[0], sizes[-1])]
        if len(sizes) > 1 and all("ViT" in end and "ResNet" in end for end in ends):
            few, many = (compare(end["ViT"], end["ResNet"]) for end in ends)
            gaps = [100 * (end["ViT"].mean - end["ResNet"].mean) for end in ends]
            said.append(
                f"The paper finds ViT below ResNets on little data: here it is {few} the ResNet, so that "
                f"{verdict(few == BELOW, few)} at this scale."
            )
            far = "" if many == ABOVE else "; this is far from 300 million images"
            said.append(
                f"It finds ViT above them once there is enough: with all {sizes[-1]:,} images it is {many} the ResNet "
                f"here, so that {verdict(many == ABOVE, many)}{far}."
            )
            said.append(
                f"Beside the ResNet, ViT is at {gaps[0]:+.1f} points with {sizes[0]:,} images and at {gaps[1]:+.1f} "
                f"with {sizes[-1]:,}."
            )
        words = [compare(each["hybrid"], each["ViT"]) for each in found.values() if {"hybrid", "ViT"} <= each.keys()]
        if words:
            said.append(
                f"It finds hybrids above ViT at small budgets: here the hybrid is above it at {words.count(ABOVE)} of "
                f"{len(words)} sizes, so that {verdict(words.count(ABOVE) == len(words), *words)}."
            )
        return said

    return Study(
        "data-size",
        "Accuracy against the number of training images",
        "How much data does a Vision Transformer need, beside a hybrid and a ResNet of like cost? Each training sees "
        f"{samples:,} images in all, some of them many times where there are few (the paper's Figures 3 and 4).",
        tuple(rows),
        lambda outcome, theme: lines(_lines(outcome, "model", "training images"), "training images", theme),
        conclude,
    )


def compute(setting: Setting) -> Study:
    """Figure 5: accuracy against the cost of training, for models of several sizes of each kind."""
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
        Row({"model": name, "megaMACs": round(cost(model).macs / 1e6, 2)}, setting.config(model, seed, samples))
        for name, sizes in models.items()
        for model in sizes
        for seed in range(setting.seeds)
    ]

    def against(outcome: Outcome) -> dict[str, list[tuple[float, Point]]]:
        series = _lines(outcome, "model", "megaMACs")
        return {name: [(6e-6 * x * samples, point) for x, point in points] for name, points in series.items()}

    def conclude(outcome: Outcome) -> list[str]:
        series = against(outcome)
        said = [
            f"{name}: " + ", ".join(f"{percent(point)} at {x:,.3g} teraFLOPs" for x, point in points) + "."
            for name, points in series.items()
        ]
        for name in ("ViT", "hybrid"):
            pairs = [
                compare(point, _nearest(x, series["ResNet"])) for x, point in series.get(name, []) if "ResNet" in series
            ]
            if pairs:
                kept = {word: pairs.count(word) for word in (ABOVE, LEVEL, BELOW, UNTOLD) if word in pairs}
                said.append(
                    f"Of {len(pairs)} {name} sizes, beside the ResNet of nearest cost: "
                    + ", ".join(f"{count} {word} it" for word, count in kept.items())
                    + " (the paper, on far more data, finds ViT above at every budget, and hybrids above ViT at the "
                    "small ones)."
                )
        return said

    return Study(
        "compute",
        "Accuracy against the cost of training",
        f"Which kind of model makes most of the same computation? Each training sees {samples:,} images; the cost is "
        "3 forward passes an image at 2 operations a multiply-add (the paper's Figure 5).",
        tuple(rows),
        lambda outcome, theme: lines(against(outcome), "teraFLOPs of the whole training", theme),
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
"""Table 8's grid, and the fixed sine and cosine positions that later work settled on."""


def positions(setting: Setting) -> Study:
    """Table 8: position embeddings of each kind, at each place."""
    samples = 12_000 if setting.quick else 64_000
    small: dict[str, Any] = {"patch_size": 4, "width": 64, "depth": 3, "mlp_dim": 256}
    rows = [
        Row(
            {"positions": kind, "added at": where if kind != "relative" else "inside attention"},
            setting.config(setting.model(positions=kind, positions_at=where, **small), seed, samples),
        )
        for kind, where in POSITIONS
        for seed in range(setting.seeds)
    ]

    def conclude(outcome: Outcome) -> list[str]:
        points = outcome.points()
        without = [point for point in points if point.factors["positions"] == "none"]
        others = [point for point in points if point.factors["positions"] != "none"]
        if not without or not others:
            return []
        best, worst = max(others, key=lambda p: p.mean), min(others, key=lambda p: p.mean)
        words = [compare(without[0], other) for other in others]
        below = words.count(BELOW)
        said = [f"Without positions {percent(without[0])}."]
        said.append(f"With them from {percent(worst)} ({_where(worst)}) to {percent(best)} ({_where(best)}).")
        said.append(
            f"The paper finds that having none is well below having any: here none is below {below} of "
            f"{len(others)}, so that {verdict(below == len(others), *words)}."
        )
        learned = [point.mean for point in others if point.factors["positions"] != "sincos"]
        if len(learned) > 1:
            wide, gap = max(learned) - min(learned), min(learned) - without[0].mean
            said.append(
                f"It finds the kinds and places alike: here the learned ones lie within {100 * wide:.1f} points of "
                f"each other, and the least is {100 * gap:+.1f} beside none. Where the first is less than half of the "
                f"second they may be called alike, so that {verdict(2 * wide < gap, *words)}."
            )
        return said

    def draw(outcome: Outcome, theme: Theme) -> bytes:
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
        conclude,
    )


def pooling(setting: Setting) -> Study:
    """Figure 9: the class token against the average of the patches, at several learning rates."""
    samples = 16_000 if setting.quick else 128_000
    rates = (3e-4, 1e-3, 3e-3) if setting.quick else (3e-4, 1e-3, 3e-3, 1e-2)
    kinds: dict[str, ModelConfig] = {
        "class token": setting.model(class_token=True, pooling="class", positions="learned"),
        "average": setting.model(class_token=False, pooling="average", positions="learned"),
    }
    rows = [
        Row({"pooling": name, "learning rate": rate}, setting.config(model, seed, samples, lr=rate))
        for name, model in kinds.items()
        for rate in rates
        for seed in range(setting.seeds)
    ]

    def conclude(outcome: Outcome) -> list[str]:
        found = {
            name: {float(point.factors["learning rate"]): point for point in outcome.points(pooling=name)}
            for name in kinds
        }
        best = {name: max(points.values(), key=lambda point: point.mean) for name, points in found.items() if points}
        said = [
            f"{name}: best at learning rate {point.factors['learning rate']:g}, {percent(point)}."
            for name, point in best.items()
        ]
        if len(best) == 2:
            word = compare(best["average"], best["class token"])
            said.append(
                f"The paper finds that both work as well once each has its own learning rate: at the best one the "
                f"average is {word} the class token here, so that {verdict(word == LEVEL, word)}."
            )
        if all(len(points) == len(rates) for points in found.values()):
            fitting = {name: level_with_best(points) for name, points in found.items()}
            common = set.intersection(*map(set, fitting.values()))
            if all(point.spread is not None for points in found.values() for point in points.values()):
                said.append(
                    "It finds that they want different learning rates: here the best, and what is level with it, is "
                    + " and ".join(f"{_listed(rates)} for the {name}" for name, rates in fitting.items())
                    + f", so that {verdict(not common)}."
                )
        return said

    return Study(
        "pooling",
        "Class token or average of the patches",
        "Is a token of its own better than the average of the patches, and do both want the same learning rate? "
        f"(The paper's Figure 9.) Each training sees {samples:,} images.",
        tuple(rows),
        lambda outcome, theme: lines(_lines(outcome, "pooling", "learning rate"), "learning rate", theme),
        conclude,
    )


def shape(setting: Setting) -> Study:
    """Figure 8: what more depth, more width or smaller patches bring."""
    samples = 12_000 if setting.quick else 64_000
    changes: dict[str, list[tuple[str, ModelConfig]]] = {
        "depth": [(f"depth {d}", setting.model(depth=d)) for d in (2, 4, 8)],
        "width": [(f"width {w}", setting.model(width=w, num_heads=w // 24, mlp_dim=4 * w)) for w in (48, 96, 192)],
        "patch size": [(f"patch size {p}", setting.model(patch_size=p)) for p in (16, 8, 4)],
    }
    rows, seen = [], set()
    for axis, models in changes.items():
        for label, model in models:
            if model in seen:  # the one all three have in common
                continue
            seen.add(model)
            factors: dict[str, str | int | float] = {
                "varied": axis if model != setting.model() else "nothing",
                "model": label if model != setting.model() else "depth 4, width 96, patch size 8",
                "megaMACs": round(cost(model).macs / 1e6, 2),
            }
            rows += [Row(factors, setting.config(model, seed, samples)) for seed in range(setting.seeds)]

    def series(outcome: Outcome) -> dict[str, list[tuple[float, Point]]]:
        common = outcome.points(varied="nothing")
        return {
            axis: sorted(
                ((float(point.factors["megaMACs"]), point) for point in [*outcome.points(varied=axis), *common]),
                key=lambda pair: pair[0],
            )
            for axis in changes
        }

    def conclude(outcome: Outcome) -> list[str]:
        said, gains = [], {}
        for axis, points in series(outcome).items():
            if len(points) == len(changes[axis]):
                (x0, first), (x1, last) = points[0], points[-1]
                # The axes cost unequally much: four times as deep is not four times as wide.
                doublings = math.log2(x1 / x0)
                pairs = zip(first.values, last.values, strict=False)
                gains[axis] = Point({}, tuple((after - before) / doublings for before, after in pairs))
                said.append(
                    f"{axis}: {percent(first)} at {x0:g} megaMACs, {percent(last)} at {x1:g}: "
                    f"{100 * gains[axis].mean:+.1f} points for each doubling of the computation."
                )
        if len(gains) == len(changes):
            most = level_with_best(gains)
            least = level_with_best({axis: Point({}, tuple(-x for x in gain.values)) for axis, gain in gains.items()})
            best, worst = (end(gains.values(), key=lambda gain: gain.mean) for end in (max, min))
            word = compare(best, worst)
            if word == LEVEL:
                said.append("No axis brings more for its computation than the others, within the spread.")
            elif word == ABOVE:
                said.append(f"A doubling brings most by {' or '.join(most)}, least by {' or '.join(least)}.")
            held = most == ["depth"] and least == ["width"]
            said.append(
                f"The paper finds depth to bring the most and width the least: that {verdict(held, word)} here."
            )
        return said

    return Study(
        "shape",
        "Depth, width and patch size",
        f"Where is more computation best spent? (The paper's Figure 8.) Each training sees {samples:,} images.",
        tuple(rows),
        lambda outcome, theme: lines(series(outcome), "megaMACs an image", theme),
        conclude,
    )


def _listed(rates: list[float]) -> str:
    return " or ".join(f"{rate:g}" for rate in rates)


def _where(point: Point) -> str:
    kind, where = str(point.factors["positions"]), str(point.factors["added at"])
    return kind if kind == "none" else f"{kind}, {where.replace('_', ' ')}"


def _lines(outcome: Outcome, name: str, across: str) -> dict[str, list[tuple[float, Point]]]:
    series: dict[str, list[tuple[float, Point]]] = {}
    for point in outcome.points():
        series.setdefault(str(point.factors[name]), []).append((float(point.factors[across]), point))
    return {key: sorted(points, key=lambda pair: pair[0]) for key, points in series.items()}


def _by(
    outcome: Outcome, outer: str, values: list[int], inner: str, names: tuple[str, ...]
) -> dict[int, dict[str, Point]]:
    found: dict[int, dict[str, Point]] = {value: {} for value in values}
    for point in outcome.points():
        if point.factors[inner] in names:
            found[int(point.factors[outer])][str(point.factors[inner])] = point
    return found


def _nearest(x: float, points: list[tuple[float, Point]]) -> Point:
    return min(points, key=lambda pair: abs(pair[0] / x - 1))[1]


STUDIES: dict[str, Callable[[Setting], Study]] = {
    "data-size": data_size,
    "compute": compute,
    "positions": positions,
    "pooling": pooling,
    "shape": shape,
}
