"""Defines a study: a list of rows, which are trainings that differ in a few named factors, each with several seeds.

Every row has a folder of its own, and its result is written when it has ended. So a study that was killed continues
where it was, a finished row is not run again, and a row that fails is reported and does not stop the others.
"""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitrail.config import TrainConfig
from vitrail.drawing.plots import Theme
from vitrail.errors import UserError
from vitrail.io.documents import read_json
from vitrail.io.files import json_text, text_file, write_file
from vitrail.studies.comparison import ABOVE, ALIKE, BELOW, LEVEL, Comparison, Contrast, Factors, Point, compare

ROWS, RESULT, ERROR, ROW = "rows", "result.json", "error.txt", "row.json"
MEASURES = ("seed", "top1", "loss", "n", "steps", "seconds", "parameters", "gmacs")
"""The columns of results.csv after the factors: the fields of a Result."""
Comparisons = dict[str, Comparison]
"""The tested contrasts, by name."""


@dataclass(frozen=True)
class StudyRow:
    """One training of a study."""

    factors: Factors
    """The values that tell it from other rows; they are columns of the table."""
    config: TrainConfig
    """The configuration, with its seed."""
    start: "StudyRow | None" = None
    """The row whose model it starts from."""
    measured: bool = True
    """False for a row that only gives others a model to start from and has no accuracy of its own."""

    @property
    def name(self) -> str:
        """Returns the name of the row's folder: its factors and its seed."""
        parts = [str(value).replace("/", "-").replace(" ", "-") for value in self.factors.values()]
        return "_".join([*parts, f"seed{self.config.seed}"])

    @property
    def digest(self) -> str:
        """Returns a hash of all that the result depends on; a row with another hash is another row."""
        content = [self.config.to_json(), self.start.digest if self.start else ""]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class RowResult:
    """The measurements of one row."""

    factors: Factors
    seed: int
    top1: float
    loss: float
    n: int
    """The number of test images."""
    steps: int
    seconds: float
    parameters: int
    gmacs: float
    """The multiply-adds of one forward pass, in billions."""


@dataclass(frozen=True)
class Study:
    """A list of rows, and how their results are drawn, compared and summed up."""

    name: str
    title: str
    """The title of the report."""
    question: str
    """The question that the study answers, in a sentence or two."""
    rows: tuple[StudyRow, ...]
    draw: Callable[["StudyOutcome", Theme], bytes]
    """Draws the picture, as PNG."""
    contrasts: Callable[["StudyOutcome"], dict[str, Contrast]]
    """Returns what is compared, by name: all from which the sentences may choose, so that none is chosen for its
    result."""
    conclude: Callable[["StudyOutcome", Comparisons], list[str]]
    """Writes sentences from the numbers; each could have come out otherwise."""
    fingerprint: str = ""
    """A hash of the samples, and of the model that trainings start from, which the configurations only name."""

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        assert len(set(names)) == len(names), "two rows of a study have one name"
        assert all(row.start is None or row.start in self.rows for row in self.rows)


@dataclass(frozen=True)
class StudyOutcome:
    """The results so far, and the rows that failed."""

    results: tuple[RowResult, ...]
    failed: dict[str, str] = field(default_factory=dict)
    """The rows that ended in an error, with the error."""
    kept: tuple[Point, ...] = ()
    """Points of which only mean and spread are known, from a table."""

    def points(self, **wanted: Any) -> list[Point]:
        """Returns the points in the order of the rows; `wanted` keeps those whose factors have these values."""
        gathered: dict[str, list[RowResult]] = {}
        for result in self.results:
            gathered.setdefault(json.dumps(result.factors), []).append(result)
        points = [Point.of(group[0].factors, [e.top1 for e in group], group[0].n) for group in gathered.values()]
        return [
            point
            for point in [*self.kept, *points]
            if all(point.factors.get(name) == value for name, value in wanted.items())
        ]

    def point(self, **wanted: Any) -> Point | None:
        """Returns the first point whose factors have these values; None if there is none."""
        found = self.points(**wanted)
        return found[0] if found else None


def as_percent(point: Point) -> str:
    """Returns the accuracy of a point with its spread, as text."""
    return f"{point.mean:.1%} " + ("(one seed)" if point.spread is None else f"± {point.spread:.1%}")


def conclusion(study: Study, outcome: StudyOutcome) -> list[str]:
    """Returns what the study says of the results so far: first what is missing, last how differences were judged."""
    points = outcome.points()
    if not points:
        return []
    measured = sum(row.measured for row in study.rows)
    missing = measured - len(outcome.results)
    sentences = (
        [f"{missing} of {measured} results are missing: what follows rests on the others."] if missing > 0 else []
    )
    found = compare(study.contrasts(outcome))
    sentences += study.conclude(outcome, found)
    if found and any(point.spread is None for point in points):
        sentences.append(
            "One seed says nothing of the chance of training: what has one is not told apart from anything."
        )
    if any(each.half_width is not None for each in found.values()):
        count = f"the {len(found)} comparisons together" if len(found) > 1 else "one comparison"
        images = " or ".join(f"{n:,}" for n in sorted({point.n for point in points}))
        sentences.append(
            f"In square brackets is the interval of a difference; two are told apart where it leaves out 0. The "
            f"level is {1 - LEVEL:.0%} for {count} (Holm's method), and the chance of the seeds and of the {images} "
            "test images is in it."
        )
    return sentences


def folder_of(row: StudyRow, out: Path) -> Path:
    """Returns the folder of a row."""
    return out / ROWS / row.name


def finished(row: StudyRow, out: Path) -> dict[str, Any] | None:
    """Returns the result of a row that has ended well; raises a UserError if the folder holds another row's."""
    folder = folder_of(row, out)
    found = {name: read_json(folder / name) for name in (ROW, RESULT) if (folder / name).is_file()}
    if any(document.get("digest") != row.digest for document in found.values()):
        raise UserError(f"{folder}: is a row of other flags, or of another version; choose another --out")
    return found.get(RESULT)


def gather(rows: Iterable[StudyRow], out: Path) -> StudyOutcome:
    """Reads the results and errors that the folder holds so far."""
    results, failed = [], {}
    for row in rows:
        document = finished(row, out)
        if document is not None:
            if row.measured:
                results.append(RowResult(factors=row.factors, **document["result"]))
        elif (error := folder_of(row, out) / ERROR).is_file():
            failed[row.name] = error.read_text(encoding="utf-8").strip()
    return StudyOutcome(tuple(results), failed)


def results_csv(outcome: StudyOutcome) -> str:
    """Returns the results as CSV: a line for each row, its factors first."""
    columns = list(dict.fromkeys(name for each in outcome.results for name in each.factors))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*columns, *MEASURES])
    for each in outcome.results:
        numbers = [getattr(each, name) for name in MEASURES]
        writer.writerow([*(each.factors.get(name, "") for name in columns), *numbers])
    return stream.getvalue()


def read_table(path: Path) -> StudyOutcome:
    """Reads results.csv with a line for each training, or a table of points with the columns top1, spread, seeds and
    n."""
    try:
        lines = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as a table of results ({error})") from None
    by_seed = bool(lines) and "seed" in lines[0]
    measures = MEASURES if by_seed else ("top1", "spread", "seeds", "n")
    if not lines or not set(measures) <= set(lines[0]):
        raise UserError(f"{path}: is no table of results; results.csv of a study has the columns {', '.join(MEASURES)}")
    results, points = [], []
    for number, line in enumerate(lines, 2):
        factors = {name: _value(text) for name, text in line.items() if name not in measures and text}
        try:
            numbers: dict[str, Any] = {name: float(line[name] or 0) for name in measures}
        except (TypeError, ValueError):
            raise UserError(f"{path}, line {number}: has something else where a number should be") from None
        if not (0 <= numbers["top1"] <= 1 and numbers["n"] >= 1):
            raise UserError(f"{path}, line {number}: top1 must be a fraction of 1, and n at least 1")
        if by_seed:
            fields: dict[str, Any] = {name: _value(line[name]) for name in measures}
            results.append(RowResult(factors, **fields))
        else:
            seeds = int(numbers["seeds"])
            points.append(
                Point(factors, numbers["top1"], numbers["spread"] if seeds > 1 else None, seeds, int(numbers["n"]))
            )
    return StudyOutcome(tuple(results), kept=tuple(points))


def _value(text: str) -> str | int | float:
    """Parses a number, or returns the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def comparison_table(study: Study, outcome: StudyOutcome) -> tuple[list[str], list[list[str]]]:
    """Returns heads and lines of a table for people: what was compared, differences in percentage points with their
    intervals, and verdicts."""
    found = compare(study.contrasts(outcome))
    heads = ["compared", "difference", "interval", "told"]
    lines = [
        [
            name,
            f"{100 * each.difference:+.2f}",
            "" if each.low is None or each.high is None else f"{100 * each.low:+.2f} to {100 * each.high:+.2f}",
            each.word if each.word in (ABOVE, BELOW, ALIKE) else "no",
        ]
        for name, each in found.items()
    ]
    return heads, lines


def points_summary(outcome: StudyOutcome) -> tuple[list[str], list[list[str]]]:
    """Returns heads and lines of a table for people: the points with mean and spread."""
    points = outcome.points()
    columns = list(dict.fromkeys(name for each in points for name in each.factors))
    heads = [*columns, "top-1", "spread", "seeds"]
    lines = [
        [
            *(_plain(each.factors.get(name, "")) for name in columns),
            f"{each.mean:.2%}",
            "" if each.spread is None else f"{each.spread:.2%}",
            str(each.seeds),
        ]
        for each in points
    ]
    return heads, lines


def _plain(value: Any) -> str:
    """Returns a value as people write it."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def write_json(path: Path, document: Any) -> None:
    """Writes a document as a JSON file."""
    write_file(path, text_file(json_text(document)), overwrite=True)
