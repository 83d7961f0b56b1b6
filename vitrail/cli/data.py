"""`vitrail data check` finds errors in a data set; `vitrail data shard` writes it as tar shards."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitrail.cli import emit_json, note
from vitrail.cli.decode_flags import Decoding
from vitrail.cli.model_flags import Flags
from vitrail.config.data import DataConfig
from vitrail.errors import UserError

if TYPE_CHECKING:
    from vitrail.data.check import CheckResult
    from vitrail.data.decode_pool import DecodeLimits


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
    ignore: tuple[int, ...] = DataConfig.ignore,
    decoding: Annotated[Decoding, Flags] = Decoding(),
    json: bool = False,
) -> None:
    """Decodes every image of a data set and reports what is wrong with it.

    Finds unreadable files, unusual modes, exact and near duplicates, the same picture in two splits, and contradicting
    labels. Shows class balance and sizes. For pictures with several labels it also shows labels that hardly occur, for
    numbers their range and outliers, for masks what is wrong with them: pairs missing, sizes that differ, ids or
    colours that no class has, masks saved as JPEG or resized with blending, and the share of each class. Says if
    pictures with more than 8 bits use little of their range. Pictures may have any number of channels. Writes
    check.html and check.json.

    Args:
        src: The data set: digits, mnist5k, shapes, a folder of class folders, a folder or pattern of images without
            classes, a folder of images with masks, a .csv or .parquet table of image files, COCO JSON, .tar shards,
            .parquet, a folder of idx or CIFAR files, hf:owner/name, or the URL of shards or .parquet files.
        out: The folder for check.html and check.json; it must be new, empty, or hold an earlier report.
        split_seed: The seed by which a data set without splits of its own is split.
        val_fraction: The share of the samples that is set aside for validation if the data set has no val split.
        test_fraction: The share of the samples that is set aside for the test if the data set has no splits at all.
        max_pixels: The largest image, in pixels, that is read; larger ones are refused by their header.
        values: Read pictures with more than 8 bits a channel as training with this --data.range would: dtype, auto,
            LOW,HIGH or percentiles such as 1%,99%.
        workers: The number of threads that decode images; by default one for each processor.
        task: The task that the data is for, if it could be for more than one: multilabel reads class folders so that
            files of the same content are one picture with several labels; segmentation reads the outlines of COCO JSON,
            or masks beside labels, as masks.
        ignore: The ids in masks that are neither learned nor measured, such as 3, besides 255.
        json: Print the findings as JSON.
    """
    from vitrail.data import open_data
    from vitrail.data.check_report import render_check
    from vitrail.io.folders import report_folder

    decode_limits = decoding.limits()
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
            ignore=ignore,
        )
    )
    for text in source.notes:
        note(f"note: {text}")
    with report_folder(out, frozenset({"check.html", "check.json"})) as folder:
        found = _examine(source, max_pixels, values, workers, decode_limits)
        findings = found.to_json()
        for text in findings["notes"][len(source.notes) :]:
            note(f"note: {text}")
        page, document = render_check(found, source), json_format.dumps(findings, indent=2, ensure_ascii=False)
        try:
            (folder / "check.json").write_text(f"{document}\n", "utf-8")
            (folder / "check.html").write_text(page, "utf-8")
        except OSError as error:
            raise UserError(f"the report cannot be written to --out {out}: {error.strerror}") from error
    if json:
        emit_json(findings)
    else:
        _print_table(found, source)
    note(f"report: {out / 'check.html'}")


def shard(
    src: Annotated[str, tyro.conf.Positional],
    out: Annotated[Path, tyro.conf.Positional],
    split_seed: int = DataConfig.split_seed,
    val_fraction: float = DataConfig.val_fraction,
    test_fraction: float = DataConfig.test_fraction,
    size: str = "256MB",
    task: str | None = DataConfig.task,
    ignore: tuple[int, ...] = DataConfig.ignore,
    json: bool = False,
) -> None:
    """Writes a data set as tar shards, which are fast to read from disks and networks that are slow with small files.

    Images are copied unchanged, with their class, labels, numbers or mask beside them; pixels from memory become PNG,
    and masks become PNG of places among the classes. The splits are written as they are, so a split made by a seed
    becomes the data set's own. The index, index.parquet, holds the place and the SHA-256 of each sample: with it the
    folder is opened without reading the shards, and damage is noticed.

    Args:
        src: The data set, of any kind that vitrail data check --help lists.
        out: A new or empty folder for the shards (train-000000.tar and so on), their index, and classes.txt.
        split_seed: The seed by which a data set without splits of its own is split.
        val_fraction: The share of the samples that is set aside for validation if the data set has no val split.
        test_fraction: The share of the samples that is set aside for the test if the data set has no splits at all.
        size: The approximate size of a shard: 256MB, 1GB, 500kB.
        task: The task that the data is for, if it could be for more than one.
        ignore: The ids in masks that are written as ignored, such as 3, besides 255.
        json: Print what was written as JSON.
    """
    from vitrail.data import open_data
    from vitrail.data.shard_writer import write_shards
    from vitrail.io.progress import progress
    from vitrail.io.sizes import byte_count

    shard_bytes = byte_count(size, "--size")
    config = DataConfig(
        src,
        split_seed=split_seed,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        task=task,
        ignore=ignore,
    )
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


def _examine(
    source: Any, max_pixels: int, values: str | None, workers: int | None, decode_limits: "DecodeLimits"
) -> "CheckResult":
    """Checks the data set, with a progress bar on a terminal, and returns the findings."""
    from vitrail.data.check import check_source
    from vitrail.data.value_range import resolved
    from vitrail.io.progress import progress

    training = source.splits.get("train", source.all)
    limits = resolved(values, None, training, max_pixels)
    with progress("decoding", sum(len(split) for split in source.splits.values())) as advance:
        return check_source(
            source,
            max_pixels=max_pixels,
            limits=limits,
            workers=workers,
            decode_limits=decode_limits,
            progress=advance,
        )


def _print_table(found: "CheckResult", source: Any) -> None:
    """Prints the findings as a table."""
    from vitrail.tasks import task

    findings, target = found.findings, task(source.task).target
    sizes = findings["sizes"]
    rows = [
        ("images", f"{findings['n']:,}  ({_listed(findings['splits'])})"),
        *found.audit.lines,
        ("unreadable", _count(findings["corrupt"], "reason")),
        ("damaged shards", _count(findings["damaged_shards"], "reason", "shard")),
        ("unusual modes", _count(findings["odd_modes"], "mode")),
        ("named like another format", _count(findings["misnamed"], "format")),
        ("exact duplicates", _groups(findings["exact_duplicates"])),
        ("near duplicates", _groups(findings["near_duplicates"])),
        ("leaks between splits", _groups([each["members"] for each in findings["leaks"]])),
    ]
    if not target.in_pixels:  # right answers in pixels are compared by their task
        rows.append((f"contradicting {target.contents}", _groups([each["members"] for each in findings["conflicts"]])))
    if sizes:
        spans = [f"{sizes[side]['least']} to {sizes[side]['most']}" for side in ("rows", "columns")]
        rows.insert(1, ("size", f"{spans[0]} rows, {spans[1]} columns"))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}".rstrip())


def _listed(counts: dict[str, int]) -> str:
    """Lists counts with their names."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _count(found: list[dict[str, Any]], key: str, name: str = "id") -> str:
    """Returns the number of findings, with the first as an example."""
    return f"{len(found):,}  (such as {found[0][name]}: {found[0][key]})" if found else "0"


def _groups(groups: list[list[dict[str, Any]]]) -> str:
    """Returns the number of groups, with the first as an example."""
    if not groups:
        return "0"
    kind = "group" if len(groups) == 1 else "groups"
    return f"{len(groups):,} {kind}  (such as {' = '.join(each['id'] for each in groups[0][:2])})"
