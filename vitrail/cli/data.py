"""`vitrail data check`: find what is wrong with a data set. `vitrail data shard`: write it as tar shards."""

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import tyro

from vitrail.cli import emit_json, note
from vitrail.config.data import DataConfig
from vitrail.errors import UserError


def check(
    src: Annotated[str, tyro.conf.Positional],
    out: Path = Path("data-check"),
    split_seed: int = DataConfig.split_seed,
    val_fraction: float = DataConfig.val_fraction,
    test_fraction: float = DataConfig.test_fraction,
    max_pixels: int = DataConfig.max_pixels,
    values: Annotated[str | None, tyro.conf.arg(name="range")] = DataConfig.range,
    workers: int | None = None,
    task: str | None = DataConfig.task,
    json: bool = False,
) -> None:
    """Decode every image of a data set and report what is wrong with it.

    Finds unreadable files, odd modes, exact and near duplicates, leaks between the splits and contradicting
    labels; shows class balance and sizes; of pictures with several labels also those that hardly occur, of numbers
    their range and outliers; says where pictures with more than 8 bits use little of their range. Takes
    pictures of any number of channels. Writes check.html and check.json.

    Args:
        src: digits, mnist5k, a folder of class folders, a folder or pattern of images without classes, a .csv or
            .parquet table of image files, COCO JSON, .tar shards, .parquet, a folder of idx or CIFAR files,
            hf:owner/name, or the URL of shards or .parquet files.
        out: Folder for check.html and check.json: new, empty, or with an earlier report in it.
        split_seed: Seeds the split of a source that has none of its own.
        val_fraction: Share set aside for validation where the source has no val split.
        test_fraction: Share set aside for the test where the source has no splits at all.
        max_pixels: Larger images are refused by their header.
        values: Read pictures with more than 8 bits a channel as training with this --data.range would: dtype, auto,
            LOW,HIGH or percentiles such as 1%,99%.
        workers: Threads that decode; all processors by default.
        task: What the data is taken to answer, where it could be more than one thing: multilabel reads class folders
            so that files of the same content are one picture with several labels.
        json: Print the findings as JSON.
    """
    from vitrail.data import open_data
    from vitrail.data.doctor_report import render
    from vitrail.io.folders import report_folder

    source = open_data(
        DataConfig(
            source=src,
            split_seed=split_seed,
            val_fraction=val_fraction,
            test_fraction=test_fraction,
            max_pixels=max_pixels,
            workers=workers,
            range=values,
            task=task,
        )
    )
    for text in source.notes:
        note(f"note: {text}")
    with report_folder(out, frozenset({"check.html", "check.json"})) as folder:
        findings = _examine(source, max_pixels, values, workers)
        for text in findings["notes"][len(source.notes) :]:
            note(f"note: {text}")
        page, document = render(findings, source), json_format.dumps(findings, indent=2, ensure_ascii=False)
        try:
            (folder / "check.json").write_text(f"{document}\n", "utf-8")
            (folder / "check.html").write_text(page, "utf-8")
        except OSError as error:
            raise UserError(f"the report cannot be written to --out {out}: {error.strerror}") from error
    if json:
        emit_json(findings)
    else:
        _print_table(findings, source)
    note(f"report: {out / 'check.html'}")


def shard(
    src: Annotated[str, tyro.conf.Positional],
    out: Annotated[Path, tyro.conf.Positional],
    split_seed: int = DataConfig.split_seed,
    val_fraction: float = DataConfig.val_fraction,
    test_fraction: float = DataConfig.test_fraction,
    size: str = "256MB",
    task: str | None = DataConfig.task,
    json: bool = False,
) -> None:
    """Write a data set as tar shards, which are quick to read from disks and networks that dislike small files.

    Images are copied as they are, with their class, labels or numbers beside them; pixels from memory become PNG. The
    splits are written as they stand, so a split cut by seed becomes the data set's own. An index, index.parquet, says
    where each sample lies and what its SHA-256 is: with it the folder is opened without reading the shards, and damage
    is noticed.

    Args:
        src: Any source; see `vitrail data check --help`.
        out: A new or empty folder for the shards, such as train-000000.tar, their index, and classes.txt.
        split_seed: Seeds the split of a source that has none of its own.
        val_fraction: Share set aside for validation where the source has no val split.
        test_fraction: Share set aside for the test where the source has no splits at all.
        size: Of a shard, about: 256MB, 1GB, 500kB.
        task: What the data is taken to answer, where it could be more than one thing.
        json: Print what was written as JSON.
    """
    from vitrail.data import open_data
    from vitrail.data.shard_writer import write_shards
    from vitrail.data.sizes import byte_count
    from vitrail.io.progress import progress

    shard_bytes = byte_count(size, "--size")
    config = DataConfig(src, task=task, split_seed=split_seed, val_fraction=val_fraction, test_fraction=test_fraction)
    source = open_data(config)
    for text in source.notes:
        note(f"note: {text}")
    with progress("writing shards", sum(len(split) for split in source.splits.values())) as advance:
        written = write_shards(source, out, shard_bytes=shard_bytes, progress=advance)
    if json:
        emit_json(written)
    else:
        samples = f"{sum(written['splits'].values()):,} samples ({_listed(written['splits'])})"
        print(f"{samples} in {written['shards']:,} shards in {out}")
        for each in written["skipped"]:
            print(f"left out: {each['id']} {each['reason']}")


def _examine(source: Any, max_pixels: int, values: str | None, workers: int | None) -> dict[str, Any]:
    """The check, under a progress bar where a person is watching."""
    from vitrail.data.doctor import check_source
    from vitrail.data.ranges import resolved
    from vitrail.io.progress import progress

    training = source.splits.get("train", source.all)
    limits = resolved(values, None, training, max_pixels)
    with progress("decoding", sum(len(split) for split in source.splits.values())) as advance:
        found = check_source(source, max_pixels=max_pixels, limits=limits, workers=workers, progress=advance)
        return found.to_json()


def _print_table(findings: dict[str, Any], source: Any) -> None:
    from vitrail.data.doctor import audit
    from vitrail.tasks import task

    sizes = findings["sizes"]
    rows = [
        ("images", f"{findings['n']:,}  ({_listed(findings['splits'])})"),
        *audit(source).lines,
        ("unreadable", _count(findings["corrupt"], "reason")),
        ("damaged shards", _count(findings["damaged_shards"], "reason", "shard")),
        ("unusual modes", _count(findings["odd_modes"], "mode")),
        ("named like another format", _count(findings["misnamed"], "format")),
        ("exact duplicates", _groups(findings["exact_duplicates"])),
        ("near duplicates", _groups(findings["near_duplicates"])),
        ("leaks between splits", _groups([each["members"] for each in findings["leaks"]])),
        (
            f"contradicting {task(source.task).target.contents}",
            _groups([each["members"] for each in findings["conflicts"]]),
        ),
    ]
    if sizes:
        spans = [f"{sizes[side]['least']} to {sizes[side]['most']}" for side in ("rows", "columns")]
        rows.insert(1, ("size", f"{spans[0]} rows, {spans[1]} columns"))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}")


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _count(found: list[dict[str, Any]], key: str, name: str = "id") -> str:
    return f"{len(found):,}  (such as {found[0][name]}: {found[0][key]})" if found else "0"


def _groups(groups: list[list[dict[str, Any]]]) -> str:
    if not groups:
        return "0"
    kind = "group" if len(groups) == 1 else "groups"
    return f"{len(groups):,} {kind}  (such as {' = '.join(each['id'] for each in groups[0][:2])})"
