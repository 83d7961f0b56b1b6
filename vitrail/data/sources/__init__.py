"""Sources of samples: one interface (`base.py`), one module for each format, and `open_source`, which recognises it."""

import difflib
import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from vitrail.config import DataConfig
from vitrail.config.entries import imported
from vitrail.data.decode import EXTENSIONS, MAX_PIXELS
from vitrail.data.sources.base import UNLABELLED, OpenOptions, Sample, Source, SourceKind, Split, SplitRule
from vitrail.data.sources.classes import match_classes
from vitrail.data.sources.folder import files_split, open_images
from vitrail.data.sources.listing import expand_braces
from vitrail.data.sources.splits import stratified_split
from vitrail.data.sources.storage.files import is_url
from vitrail.data.sources.storage.folders import LocalFolder
from vitrail.errors import UserError
from vitrail.tasks import task as open_task

__all__ = [
    "UNLABELLED",
    "Sample",
    "Source",
    "Split",
    "files_split",
    "match_classes",
    "open_data",
    "open_source",
    "with_dev",
]

_EMBEDDED = ("digits", "mnist5k", "shapes")
"""The names of data that need no file: two that installed packages contain, one that is drawn."""
SOURCE_KINDS = ("table.TableFile", "coco.Coco", "masks.MaskFolder", "cifar.CifarFolder", "idx.IdxFolder")
"""The module and class of each format that is recognised quickly. The first that recognises a path opens it; a path
that none recognises is taken for shards or images."""
# Endings of archives that have to be unpacked first.
_ARCHIVES = (".tar.gz", ".tgz", ".zip", ".tar.xz", ".tar.bz2", ".7z", ".rar")


def open_source(
    src: str | Path,
    *,
    split_seed: int = 0,
    val_fraction: float = 0.1,
    test_fraction: float = 0.1,
    task: str | None = None,
    ignore: Sequence[int] = (),
    max_pixels: int = MAX_PIXELS,
) -> Source:
    """Recognises the format of a source and opens it.

    Splits that it does not have are made of random samples, with every class in its proportion.

    Args:
        src: The name or path of the source.
        split_seed: The seed by which splits are made.
        val_fraction: The fraction of the samples for a validation split.
        test_fraction: The fraction of the samples for a test split.
        task: The task that the source is for, if its data could be for several; None to take the task they show.
        ignore: The ids in masks that are neither learned nor measured, besides 255.
        max_pixels: The largest mask that is decoded, in pixels.

    Raises:
        UserError: If there is no such source, it cannot be read, or it is not for that task.
    """
    rule, asked = SplitRule(split_seed, val_fraction, test_fraction), OpenOptions(task, tuple(ignore), max_pixels)
    source = _open(str(src), rule, asked)
    if task is not None and task != source.task:
        open_task(task)
        raise UserError(f"{source.name} is data for {source.task}, and cannot be taken for {task}: leave --task out")
    if ignore and not open_task(source.task).target.in_pixels:
        raise UserError(f"{source.name} has no masks, of which ids could be ignored: leave --data.ignore out")
    return source


def _open(text: str, rule: SplitRule, asked: OpenOptions) -> Source:
    """Opens a source of any format. asked: what the user asked of it besides its splits."""
    if text in _EMBEDDED:
        from vitrail.data.sources.embedded import open_embedded

        return open_embedded(text, rule)
    if text.startswith("hf:"):
        from vitrail.data.sources.huggingface import open_huggingface

        return open_huggingface(text.removeprefix("hf:"), rule, asked)
    if is_url(text):
        from vitrail.data.sources.remote import open_remote

        return open_remote(text, rule, asked)
    path = Path(text).expanduser()
    if path.exists() and (kind := next((each for each in _source_kinds() if each.recognises(path)), None)):
        return kind.open(path, rule, asked)
    if path.is_dir():
        return _open_folder(path, rule, asked)
    if path.is_file():
        return _open_files(text, [path], path.parent, rule, asked)
    if any(mark in text for mark in "*?[{"):
        return _open_glob(path, rule, asked)
    near = difflib.get_close_matches(text, _EMBEDDED, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"give one of: {_choices()}"
    raise UserError(f"there is no source {text!r}: no such file or folder; {hint}")


def open_data(config: DataConfig) -> Source:
    """Opens the source that a configuration describes, with the sizes of its splits reduced as it says."""
    source = open_source(
        config.source,
        split_seed=config.split_seed,
        val_fraction=config.val_fraction,
        test_fraction=config.test_fraction,
        task=config.task,
        ignore=config.ignore,
        max_pixels=config.max_pixels,
    )
    if config.train_size is not None:
        source = _with_fewer(source, "train", config.train_size, config.split_seed)
    if config.val_size == 0:
        return replace(source, splits={name: split for name, split in source.splits.items() if name != "val"})
    return source if config.val_size is None else _with_fewer(source, "val", config.val_size, config.split_seed)


def with_dev(source: Source, fraction: float, seed: int) -> Source:
    """Adds a split `dev`, taken from the training split, to a source that has a `val` and no `test`.

    The result of such a source is reported on `val`, so settings must be chosen on other samples. Other sources are
    returned as they are.

    Args:
        source: The data.
        fraction: The fraction of the training split for `dev`.
        seed: The seed by which it is chosen.
    """
    if "val" not in source.splits or "test" in source.splits or "train" not in source.splits or not fraction:
        return source
    train = source.split("train")
    parts = stratified_split(train.ids, train.strata, {"dev": fraction}, seed)
    if not len(parts["dev"]):
        return source
    cut = {name: train.subset(parts[name], name) for name in ("train", "dev")}
    return replace(source, splits={**cut, "val": source.splits["val"]}, made_splits=(*source.made_splits, "dev"))


def _with_fewer(source: Source, part: str, size: int, seed: int) -> Source:
    """Reduces one split of a source to `size` samples, with every class in its proportion.

    Raises UserError if the split has fewer samples, or a class would lose all of them.
    """
    split = source.split(part)
    if size > len(split):
        raise UserError(f"{source.name}: its split {part} has {len(split)} samples, fewer than data.{part}-size {size}")
    if size == len(split):
        return source
    chosen = stratified_split(split.ids, split.strata, {"left out": 1 - size / len(split)}, seed)
    kept = split.subset(chosen["train"])
    if len(kept) != size:
        raise UserError(
            f"{source.name}: data.{part}-size {size} leaves some of its {len(source.classes)} classes empty"
        )
    return replace(source, splits={**source.splits, part: kept})


def _source_kinds() -> Iterator[SourceKind]:
    return (imported("vitrail.data.sources", entry)() for entry in SOURCE_KINDS)


def _choices() -> str:
    """Lists everything that a source can be, in words for a message."""
    kinds = ", ".join(kind.words for kind in _source_kinds())
    return (
        "digits, mnist5k, shapes, a folder of class folders, a folder or pattern of images without classes, "
        f"{kinds}, .tar shards, .parquet, hf:owner/name, or a URL of shards or .parquet"
    )


def _open_folder(path: Path, rule: SplitRule, asked: OpenOptions) -> Source:
    from vitrail.data.sources.folder import open_folder

    # A folder with an index but no shards is opened as shards too, so that the error names the missing ones.
    if _holds(path, ".tar") or _is_shard_index(path / "index.parquet"):
        from vitrail.data.sources.shards import open_shards

        return open_shards(str(path), LocalFolder(path), None, rule, asked)
    if _holds(path, ".parquet"):
        return _open_files(str(path), sorted(path.rglob("*.parquet")), path, rule, asked)
    return open_folder(path, rule, asked.task)


def _open_files(name: str, files: list[Path], root: Path, rule: SplitRule, asked: OpenOptions) -> Source:
    """Opens .tar or .parquet files below `root`. Raises UserError, with a remedy, if they are something else."""
    files = [file for file in files if not file.name.startswith(".") and file.is_file()]
    suffixes = {file.suffix.lower() for file in files}
    if suffixes in ({".tar"}, {".parquet"}):
        names = [file.relative_to(root).as_posix() for file in files]
        return _open_sharded(name, LocalFolder(root, globbed=True), names, rule, asked)
    first = next((file for file in files if file.suffix.lower() not in (".tar", ".parquet")), files[0])
    if first.name.lower().endswith(_ARCHIVES):
        raise UserError(f"{first} is an archive: unpack it and give the folder")
    if "ubyte" in first.name or "batch" in first.name:
        raise UserError(f"{first} is one file of several: give its folder, {first.parent}")
    raise UserError(f"{first} is not a source; give one of: {_choices()}")


def _open_sharded(name: str, place: LocalFolder, names: list[str], rule: SplitRule, asked: OpenOptions) -> Source:
    """Opens files that all end in .tar, or all in .parquet."""
    if names[0].lower().endswith(".tar"):
        from vitrail.data.sources.shards import open_shards

        return open_shards(name, place, names, rule, asked)
    from vitrail.data.sources.parquet import open_parquet

    return open_parquet(name, place, names, rule, asked)


def _open_glob(pattern: Path, rule: SplitRule, asked: OpenOptions) -> Source:
    """Opens the files that match a pattern: images without classes, shards or parquet files."""
    files = sorted({Path(found) for each in expand_braces(str(pattern)) for found in glob.glob(each, recursive=True)})  # noqa: PTH207
    files = [file for file in files if file.is_file() and not file.name.startswith(".")]
    if not files:
        raise UserError(f"no file matches {str(pattern)!r}")
    root = Path(os.path.commonpath([str(file.parent) for file in files]))
    suffixes = {file.suffix.lower() for file in files}
    if suffixes & EXTENSIONS and not suffixes & {".tar", ".parquet"}:
        return open_images(str(pattern), files, root, rule)
    return _open_files(str(pattern), files, root, rule, asked)


def _is_shard_index(file: Path) -> bool:
    """Tells whether a file exists and is an index of shards."""
    if not file.is_file():
        return False
    from vitrail.data.sources.shard_index import recognise

    return recognise(file) == "index"


def _holds(folder: Path, suffix: str, depth: int = 2) -> bool:
    """Tells whether files with this ending are in a folder or up to `depth` folders below it.

    Only the first 50 files and 20 subfolders of each folder are looked at, which is enough for folders of one kind.
    """
    seen, folders = 0, []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
            elif entry.name.lower().endswith(suffix):
                return True
            else:
                seen += 1
                if seen >= 50:
                    return False
    return depth > 0 and any(_holds(each, suffix, depth - 1) for each in folders[:20])
