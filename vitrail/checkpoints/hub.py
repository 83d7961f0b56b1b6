"""Models of the Hugging Face hub as local folders: `hf:owner/name`, and published weights by name.

Files are kept in the hub client's own cache. Each is compared with the digest the hub states for it: SHA-256 for large
files, git's SHA-1 for small ones. Without a network, what the cache has is used.
"""

import functools
import hashlib
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

from vitrail.checkpoints.published import Published, asked_for
from vitrail.errors import UserError
from vitrail.io.checksums import SUMS, digest
from vitrail.io.progress import progress
from vitrail.models.card import Card

CONFIGURATION = "config.json"
FILES = [CONFIGURATION, "preprocessor_config.json", SUMS, "*.safetensors", "*.safetensors.index.json"]
PICKLED = "pytorch_model.bin"
MEGABYTE = 1_000_000
SHA256_LETTERS = 64

Result = TypeVar("Result")


@dataclass(frozen=True)
class Fetched:
    """A model of the hub that is here now."""

    folder: Path
    provenance: dict[str, Any]
    notes: list[str]
    weights: Published | None = None

    def describe(self, card: Card) -> None:
        """Say on a model's card where it came from, and what is known of it besides."""
        card.provenance = {**card.provenance, "hub": self.provenance}
        card.notes = [*self.notes, *card.notes]
        if self.weights and card.preprocessing is None:
            card.preprocessing = self.weights.preprocessing


@dataclass(frozen=True)
class _Wanted:
    asked: str
    """As the user said it."""
    repository: str
    revision: str | None = None
    file: str | None = None
    """The weights file, where it is known beforehand."""


class _Unreachable(Exception):
    """The hub did not answer, or not in time."""


def fetch(source: str | Path) -> Fetched | None:
    """Fetch what `hf:owner/name[@revision]` or a published name needs; None where a MODEL argument is neither.

    Code is never fetched, nor pickle where there are safetensors.
    """
    if weights := asked_for(source):
        fetched = _fetch(_Wanted(str(source), weights.hub, file=weights.file))
        facts = {"name": weights.full_name, "trained_on": weights.trained_on, "licence": weights.licence}
        notes = [f"{source}: {weights}", *fetched.notes]
        return Fetched(fetched.folder, {**fetched.provenance, **facts}, notes, weights)
    if not isinstance(source, str) or not source.startswith("hf:"):
        return None
    name, _, revision = source.removeprefix("hf:").partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"{source!r} is not a hub name; it looks like hf:owner/name or hf:owner/name@revision")
    return _fetch(_Wanted(source, name, revision or None))


def _fetch(wanted: _Wanted) -> Fetched:
    from huggingface_hub import constants

    fetched = _fetched_before(wanted, constants.ENDPOINT, constants.HF_HUB_CACHE)
    if not fetched.folder.is_dir():  # the cache was emptied meanwhile
        _fetched_before.cache_clear()
        fetched = _fetched_before(wanted, constants.ENDPOINT, constants.HF_HUB_CACHE)
    return fetched


@functools.cache
def _fetched_before(wanted: _Wanted, endpoint: str, cache: str) -> Fetched:
    """Once a process: a command may open its model several times."""
    try:
        commit, files, licence = _listed(wanted)
        folder, notes = _download(wanted, commit, files), []
        stated = {each.rfilename: each.lfs.sha256 if each.lfs else each.blob_id for each in files}
    except _Unreachable as error:
        folder = _cached(wanted, error, endpoint, Path(cache))
        commit, licence = folder.name, None
        notes = [f"the hub cannot be reached ({error}): {wanted.repository} is taken from its cache"]
        stated = {path.name: _name_in_cache(path) for path in folder.iterdir() if path.is_file()}
    digests = {name: _compare(wanted, folder / name, stated[name]) for name in sorted(stated)}
    notes += [f"WARNING: the hub states no digest of {name}: not compared" for name, each in stated.items() if not each]
    weights = {name: each for name, each in digests.items() if not name.endswith(".json")}
    provenance: dict[str, Any] = {"repository": wanted.repository, "commit": commit, "sha256": weights}
    if licence:
        provenance["licence"] = licence
    return Fetched(folder, provenance, notes)


def _listed(wanted: _Wanted) -> tuple[str, list[Any], str | None]:
    """(commit, the files to fetch, licence) as the hub states them."""
    from huggingface_hub import HfApi, constants

    limit = constants.HF_HUB_ETAG_TIMEOUT

    def ask() -> Any:
        return HfApi().model_info(wanted.repository, revision=wanted.revision, files_metadata=True, timeout=limit)

    with _answers(wanted):
        info = _within_limits(ask, _Meter())
    siblings = {each.rfilename: each for each in info.siblings or []}
    patterns = [CONFIGURATION, wanted.file] if wanted.file else FILES
    files = [each for name, each in siblings.items() if any(fnmatch(name, pattern) for pattern in patterns)]
    if not wanted.file and PICKLED in siblings and not any(each.rfilename.endswith(".safetensors") for each in files):
        files.append(siblings[PICKLED])
    if wanted.file and wanted.file not in siblings:
        raise UserError(f"{wanted.asked}: {wanted.repository} on the hub has no file {wanted.file} any more")
    return info.sha, files, getattr(info.card_data, "license", None)


def _download(wanted: _Wanted, commit: str, files: list[Any]) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    def missing(name: str) -> bool:
        return not isinstance(try_to_load_from_cache(wanted.repository, name, revision=commit), str)

    meter = _Meter(sum(each.size or 0 for each in files if missing(each.rfilename)))

    def download() -> list[str]:
        # The first by the revision's name: so the cache knows its commit when there is no network.
        revisions = [wanted.revision, *[commit] * len(files)]
        return [
            hf_hub_download(wanted.repository, each.rfilename, revision=revision, tqdm_class=meter.counter())
            for each, revision in zip(files, revisions, strict=False)
        ]

    with _answers(wanted), progress(f"{wanted.repository} (MB)", meter.total // MEGABYTE, after=0.5) as advance:
        paths = _within_limits(download, meter, advance)
    if not paths:
        raise UserError(f"{wanted.asked}: {wanted.repository} on the hub has no weights that are known here")
    return Path(paths[-1]).parent


class _Meter:
    """How many bytes of how many have come."""

    def __init__(self, total: int = 0):
        self.total, self.done = total, 0

    def counter(self) -> Any:
        """What the hub's client takes for a progress bar."""
        from tqdm import tqdm

        meter = self

        class Counter(tqdm):
            def __init__(self, *_: Any, **options: Any):
                super().__init__(total=options.get("total"), disable=True)

            def update(self, n: float | None = 1) -> None:
                meter.done += int(n or 0)

        return Counter


def _within_limits(
    work: Callable[[], Result], meter: _Meter, advance: Callable[[float], None] = lambda _: None
) -> Result:
    """Run `work` in a thread, which is left behind when nothing, or less than a megabyte, comes for too long."""
    from huggingface_hub import constants

    constants.DOWNLOAD_CHUNK_SIZE = MEGABYTE  # the client tells of whole chunks only, and its own are ten times that
    limit = 3 * max(constants.HF_HUB_DOWNLOAD_TIMEOUT, constants.HF_HUB_ETAG_TIMEOUT)  # it tries several times
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # for the one who waits
            future.set_exception(error)

    threading.Thread(target=run, name="vitrail-hub", daemon=True).start()
    heard, seen = time.monotonic(), 0
    while not wait([future], timeout=0.1).done:
        if meter.done > seen:
            advance((meter.done - seen) / MEGABYTE)
            heard, seen = time.monotonic(), meter.done
        elif time.monotonic() - heard > limit:
            raise _Unreachable(f"not a megabyte came in {limit} s")
    return future.result()


@contextmanager
def _answers(wanted: _Wanted) -> Iterator[None]:
    """The many kinds of errors of the hub's client, as one of two: it cannot be reached, or it says no."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)  # what it would warn of is said here
    try:
        yield
    except (UserError, _Unreachable):
        raise
    except OfflineModeIsEnabled as error:
        raise _Unreachable("HF_HUB_OFFLINE is set") from error
    except Exception as error:
        # What the client's own HTTP library raises: httpx's or its successor's, by release.
        transport = any(kind.__name__ == "TransportError" for kind in type(error).__mro__)
        if transport or isinstance(error, (LocalEntryNotFoundError, ConnectionError, TimeoutError, socket.gaierror)):
            raise _Unreachable(_reason(error)) from error
        if isinstance(error, HfHubHTTPError) and error.response.status_code >= 500:
            raise _Unreachable(f"it answers {error.response.status_code}") from error
        raise UserError(f"{wanted.asked}: cannot be had from the hub: {_reason(error)}") from error
    finally:
        logger.setLevel(level)


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _cached(wanted: _Wanted, why: Exception, endpoint: str, cache: Path) -> Path:
    """The folder of an earlier download, or the sentence that says what is wanted and where to put it."""
    from huggingface_hub import try_to_load_from_cache

    names = [wanted.file] if wanted.file else ["model.safetensors", "model.safetensors.index.json", PICKLED]
    for name in names:
        found = try_to_load_from_cache(wanted.repository, name, revision=wanted.revision)
        if isinstance(found, str) and (Path(found).with_name(CONFIGURATION)).is_file():
            return Path(found).parent
    place = f"{endpoint}/{wanted.repository}/resolve/{wanted.revision or 'main'}"
    raise UserError(
        f"{wanted.asked}: the hub cannot be reached ({why}), and {wanted.repository} is not in its cache ({cache}).\n"
        f"Fetch {place}/{names[0]} and {CONFIGURATION} beside it where there is a network, put both in a folder here, "
        f"and give that folder in place of {wanted.asked}"
    ) from why


def _name_in_cache(path: Path) -> str | None:
    """The digest that the hub stated when the file was fetched: the cache links to files that are named by it."""
    return path.readlink().name if path.is_symlink() else None


def _compare(wanted: _Wanted, path: Path, stated: str | None) -> str:
    """The SHA-256 of a file, which is what the hub says it is."""
    found = digest(path)
    if stated and stated != (found if len(stated) == SHA256_LETTERS else _git_digest(path)):
        raise UserError(
            f"{wanted.asked}: {path.name} of {wanted.repository} is not what the hub states: its digest should be "
            f"{stated}, the file's SHA-256 is {found}.\nIt was damaged or exchanged on the way and is not used: "
            f"delete {path.resolve()} to fetch it again"
        )
    return found


def _git_digest(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
