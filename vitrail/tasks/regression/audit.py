"""Checks the numbers of a data set."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.tasks.audits import Audit, CheckedSplit

FAR = 6.0
"""A number is an outlier if its distance from the median is more than this many median absolute deviations (MAD)."""


def audit(splits: Mapping[str, CheckedSplit], names: Sequence[str]) -> Audit:
    """Finds the range of each number, outliers, and numbers that are always the same."""
    numbers = {name: _of_one(splits, place) for place, name in enumerate(names)}
    outliers = [{"name": name, **each} for name, facts in numbers.items() for each in facts.pop("outliers")]
    constant = [name for name, facts in numbers.items() if facts["constant"]]
    lines = [
        ("numbers", f"{len(names):,}"),
        *((f"  {name}", _range(facts)) for name, facts in numbers.items()),
        ("numbers that are always the same", f"{len(constant):,}  (such as {constant[0]})" if constant else "0"),
        (f"outliers beyond {FAR:g} MAD", _some(outliers)),
    ]
    keys = ("least", "median", "most", "mad")
    rows = [
        (name, f"{facts['n']:,}", *("" if facts[key] is None else f"{facts[key]:.6g}" for key in keys))
        for name, facts in numbers.items()
    ]
    far = [
        (each["name"], each["id"], each["split"], f"{each['value']:.6g}", f"{each['mads']:.3g}") for each in outliers
    ]
    about = "Numbers far from the others: a slip of the pen, another unit, or rare and true."
    tables = [
        ("Numbers", "", ("number", "images", "least", "median", "most", "median absolute deviation"), rows),
        (
            "Numbers that are always the same",
            "There is nothing to learn of them.",
            ("number",),
            [(each,) for each in constant],
        ),
        (
            f"Outliers beyond {FAR:g} median absolute deviations",
            about,
            ("number", "image", "split", "value", "MADs"),
            far,
        ),
    ]
    return Audit({}, {"numbers": numbers, "constant_numbers": constant, "outliers": outliers}, lines, tables)


def _of_one(splits: Mapping[str, CheckedSplit], place: int) -> dict[str, Any]:
    """Describes one number, at index `place` of the targets; the furthest outlier comes first."""
    found = [
        (name, split, float(value))
        for split, each in splits.items()
        for name, value in zip(each.ids, each.targets[:, place], strict=True)
        if np.isfinite(value)
    ]
    values = np.array([value for *_, value in found])
    if not len(values):
        return {"n": 0, **dict.fromkeys(("least", "median", "most", "mad")), "constant": False, "outliers": []}
    median = float(np.median(values))
    mad = float(np.median(np.abs(values - median)))
    # If more than half of the numbers are equal the MAD is 0, and there is no scale to judge the others by.
    far = np.abs(values - median) / mad if mad else np.zeros(len(values))
    outliers = [
        {"id": found[row][0], "split": found[row][1], "value": found[row][2], "mads": float(far[row])}
        for row in np.argsort(-far, kind="stable").tolist()
        if far[row] > FAR
    ]
    extremes = {"least": float(values.min()), "median": median, "most": float(values.max()), "mad": mad}
    constant = len(values) > 1 and extremes["least"] == extremes["most"]
    return {"n": len(values), **extremes, "constant": constant, "outliers": outliers}


def _range(facts: Mapping[str, Any]) -> str:
    return f"{facts['least']:.6g} to {facts['most']:.6g}, median {facts['median']:.6g}" if facts["n"] else "none known"


def _some(outliers: Sequence[Mapping[str, Any]]) -> str:
    if not outliers:
        return "0"
    first = outliers[0]
    return f"{len(outliers):,}  (such as {first['id']}: {first['name']} {first['value']:.6g})"
