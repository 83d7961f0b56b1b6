"""A study is a list of rows: trainings that differ in a few named factors, each with several seeds.

Every row has a folder of its own, and its result is written when it has ended: a study that was killed goes on where it
was, a finished row is not run again, and one that fails is told of without taking the others with it.
"""

import csv
import hashlib
import io
import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.checkpoints.files import json_text, read_json, text_file, write_file
from vitrail.config import TrainConfig
from vitrail.drawing.plots import Theme
from vitrail.errors import UserError

ROWS, RESULT, ERROR, ROW = "rows", "result.json", "error.txt", "row.json"
Factors = dict[str, str | int | float]


@dataclass(frozen=True)
class Row:
    """One training of a study."""

    factors: Factors
    """What tells it from the others; the columns of the table."""
    config: TrainConfig
    """With its seed."""
    start: "Row | None" = None
    """The row whose model it starts from."""
    measured: bool = True
    """False for a row that others start from and that has no accuracy of its own."""

    @property
    def name(self) -> str:
        parts = [str(value).replace("/", "-").replace(" ", "-") for value in self.factors.values()]
        return "_".join([*parts, f"seed{self.config.seed}"])

    @property
    def digest(self) -> str:
        """Of all that its result depends on: another one is another row."""
        content = [self.config.to_json(), self.start.digest if self.start else ""]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Result:
    """What a row came to."""

    factors: Factors
    seed: int
    top1: float
    loss: float
    n: int
    steps: int
    seconds: float
    parameters: int
    gmacs: float


@dataclass(frozen=True)
class Point:
    """The rows that differ in the seed alone."""

    factors: Factors
    values: tuple[float, ...]
    """Accuracies by seed."""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float | None:
        """The standard deviation over the seeds; None of one seed, which says nothing of it."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    question: str
    """What it asks, in a sentence or two."""
    rows: tuple[Row, ...]
    draw: Callable[["Outcome", Theme], bytes]
    """The picture, as PNG."""
    conclude: Callable[["Outcome"], list[str]]
    """Sentences computed from the numbers, each of which could have come out otherwise."""
    fingerprint: str = ""
    """Of the samples, and of the model it starts from: what the rows' settings only name."""

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        assert len(set(names)) == len(names), "two rows of a study have one name"
        assert all(row.start is None or row.start in self.rows for row in self.rows)


@dataclass(frozen=True)
class Outcome:
    """The results there are, gathered over seeds."""

    results: tuple[Result, ...]
    failed: dict[str, str] = field(default_factory=dict)
    """Rows that ended in an error, and which."""

    def points(self, **wanted: Any) -> list[Point]:
        """In the order of the rows; `wanted` keeps those whose factors are so."""
        gathered: dict[str, list[Result]] = {}
        for result in self.results:
            if all(result.factors.get(name) == value for name, value in wanted.items()):
                gathered.setdefault(json.dumps(result.factors), []).append(result)
        return [Point(group[0].factors, tuple(each.top1 for each in group)) for group in gathered.values()]

    def point(self, **wanted: Any) -> Point | None:
        found = self.points(**wanted)
        return found[0] if found else None


ABOVE, LEVEL, BELOW, UNTOLD = "above", "level with", "below", "not told apart from"


def compare(one: Point, other: Point) -> str:
    """above, below or level with: whether the difference of two means is larger than the spread of both. Where one of
    them has a single seed, nobody knows."""
    if one.spread is None or other.spread is None:
        return UNTOLD
    difference = one.mean - other.mean
    if abs(difference) <= max(one.spread, other.spread):
        return LEVEL
    return ABOVE if difference > 0 else BELOW


def verdict(held: bool, *words: str) -> str:
    """Of a finding of the paper, by the comparisons it rests on."""
    return "is open with one seed" if UNTOLD in words else "holds" if held else "does not hold"


def level_with_best(points: dict[Any, Point]) -> list[Any]:
    """The keys of the best point and of those that are not below it."""
    best = max(points.values(), key=lambda point: point.mean)
    return [key for key, point in points.items() if point is best or compare(point, best) != BELOW]


def percent(point: Point) -> str:
    return f"{point.mean:.1%} " + ("(one seed)" if point.spread is None else f"± {point.spread:.1%}")


def conclusion(study: Study, outcome: Outcome) -> list[str]:
    """What the study says of the results there are, and first what there is not."""
    if not outcome.results:
        return []
    measured = sum(row.measured for row in study.rows)
    missing = measured - len(outcome.results)
    lacking = [f"{missing} of {measured} results are missing: what follows rests on the others."] if missing else []
    return lacking + study.conclude(outcome)


def folder_of(row: Row, out: Path) -> Path:
    return out / ROWS / row.name


def finished(row: Row, out: Path) -> dict[str, Any] | None:
    """The result of a row that has ended well before; an error where the folder holds another row's."""
    folder = folder_of(row, out)
    found = {name: read_json(folder / name) for name in (ROW, RESULT) if (folder / name).is_file()}
    if any(document.get("digest") != row.digest for document in found.values()):
        raise UserError(f"{folder}: is a row of other flags, or of another version; choose another --out")
    return found.get(RESULT)


def gather(rows: Iterable[Row], out: Path) -> Outcome:
    """What the folder holds by now."""
    results, failed = [], {}
    for row in rows:
        document = finished(row, out)
        if document is not None:
            if row.measured:
                results.append(Result(factors=row.factors, **document["result"]))
        elif (error := folder_of(row, out) / ERROR).is_file():
            failed[row.name] = error.read_text(encoding="utf-8").strip()
    return Outcome(tuple(results), failed)


def table(outcome: Outcome) -> str:
    """CSV: a line a row, its factors first."""
    columns = list(dict.fromkeys(name for each in outcome.results for name in each.factors))
    measures = ("seed", "top1", "loss", "n", "steps", "seconds", "parameters", "gmacs")
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*columns, *measures])
    for each in outcome.results:
        numbers = [getattr(each, name) for name in measures]
        writer.writerow([*(each.factors.get(name, "") for name in columns), *numbers])
    return stream.getvalue()


def summary(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """A table for people: the points, with mean and spread."""
    points = outcome.points()
    columns = list(dict.fromkeys(name for each in points for name in each.factors))
    heads = [*columns, "top-1", "spread", "seeds"]
    lines = [
        [
            *(_plain(each.factors.get(name, "")) for name in columns),
            f"{each.mean:.2%}",
            "" if each.spread is None else f"{each.spread:.2%}",
            str(len(each.values)),
        ]
        for each in points
    ]
    return heads, lines


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def write_json(path: Path, document: Any) -> None:
    write_file(path, text_file(json_text(document)), overwrite=True)
