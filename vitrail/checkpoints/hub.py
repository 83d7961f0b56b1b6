"""Downloading models of the Hugging Face hub: `hf:owner/name`, and published weights by name.

Files are kept in the cache of the hub's own client. Each is compared with the digest that the hub states for it:
SHA-256 for large files, git's SHA-1 for small ones. Without a network, files that the cache has are used.
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
"""Patterns of the files that are downloaded from a repository."""
PICKLED = "pytorch_model.bin"
"""The weights file that is downloaded if there are no safetensors."""
MEGABYTE = 1_000_000
SHA256_LETTERS = 64
"""The length of a SHA-256 in hexadecimal digits, which distinguishes it from git's SHA-1."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Fetched:
    """A model of the hub that has been downloaded."""

    folder: Path
    """The folder in the cache that has its files."""
    provenance: dict[str, Any]
    """The origin of the model, for its card: repository, commit, SHA-256 of its files, licence."""
    notes: list[str]
    """Sentences for the user."""
    weights: Published | None = None
    """The entry of the table of published weights, if the model was asked for by a name in it."""

    def describe(self, card: Card) -> None:
        """Writes the origin, the notes and, if the card has none, the published preprocessing to a model's card."""
        card.provenance = {**card.provenance, "hub": self.provenance}
        card.notes = [*self.notes, *card.notes]
        if self.weights and card.preprocessing is None:
            card.preprocessing = self.weights.preprocessing


@dataclass(frozen=True)
class _Wanted:
    """A model to download."""

    asked: str
    """The name that the user gave, for messages."""
    repository: str
    """owner/name on the hub."""
    revision: str | None = None
    """The branch, tag or commit; None is the main branch."""
    file: str | None = None
    """The weights file, if it is known beforehand."""


class _Unreachable(Exception):
    """The hub did not answer, or not in time; the message says why."""


def fetch_repository(source: str | Path) -> Fetched | None:
    """Downloads a model by `hf:owner/name[@revision]` or by the name of published weights.

    Code is never downloaded, and a pickled file only if the repository has no safetensors.

    Args:
        source: A MODEL argument.

    Returns:
        The downloaded model, or None if `source` is neither of the two.

    Raises:
        UserError: If there is no such model, if it is neither reachable nor in the cache, or if a file differs from its
            digest.
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
    """Downloads a model at most once in this process, unless the cache was emptied since."""
    from huggingface_hub import constants

    fetched = _fetched_before(wanted, constants.ENDPOINT, constants.HF_HUB_CACHE)
    if not fetched.folder.is_dir():
        _fetched_before.cache_clear()
        fetched = _fetched_before(wanted, constants.ENDPOINT, constants.HF_HUB_CACHE)
    return fetched


@functools.cache
def _fetched_before(wanted: _Wanted, endpoint: str, cache: str) -> Fetched:
    """Downloads a model, or returns what the first call in this process returned: a command may open a model several
    times."""
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
    """Asks the hub for the commit, the files to download and the licence of a repository, in this order."""
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
    """Downloads the files that the cache lacks and returns the folder that has all of them."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    def missing(name: str) -> bool:
        return not isinstance(try_to_load_from_cache(wanted.repository, name, revision=commit), str)

    meter = _Meter(sum(each.size or 0 for each in files if missing(each.rfilename)))

    def download() -> list[str]:
        # The first file is asked for by the name of the revision, not by its commit, so that the cache remembers which
        # commit the name means and finds it when there is no network.
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
    """Counts the bytes that have been downloaded."""

    def __init__(self, total: int = 0):
        self.total, self.done = total, 0

    def counter(self) -> Any:
        """Returns a subclass of tqdm for the hub's client, which adds to this meter and shows nothing."""
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
    """Runs `work` in a thread and returns its result. If less than a megabyte arrives for too long, raises _Unreachable
    and abandons the thread, since the client's calls cannot be interrupted.

    advance: called with the number of megabytes newly downloaded.
    """
    from huggingface_hub import constants

    constants.DOWNLOAD_CHUNK_SIZE = MEGABYTE  # the client reports whole chunks only, by default of ten megabytes
    limit = 3 * max(constants.HF_HUB_DOWNLOAD_TIMEOUT, constants.HF_HUB_ETAG_TIMEOUT)  # it tries several times
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised again below, in the thread that waits
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
    """Turns the many exceptions of the hub's client into two: _Unreachable if the hub cannot be reached, UserError if
    it refuses."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)  # the client's warnings repeat what our own messages say
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
        raise UserError(f"{wanted.asked}: the hub does not give it: {_reason(error)}") from error
    finally:
        logger.setLevel(level)


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def _cached(wanted: _Wanted, why: Exception, endpoint: str, cache: Path) -> Path:
    """Returns the folder of an earlier download. Raises UserError if there is none; its message says which files to
    fetch by other means and where to put them."""
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
    """Returns the digest that the hub stated when a file was downloaded, or None if it is not known.

    In the client's cache a file is a symbolic link to one that has its digest as its name.
    """
    return path.readlink().name if path.is_symlink() else None


def _compare(wanted: _Wanted, path: Path, stated: str | None) -> str:
    """Returns the SHA-256 of a file, after comparing the file with the digest that the hub states (None: unknown).

    Raises UserError if they differ.
    """
    found = digest(path)
    if stated and stated != (found if len(stated) == SHA256_LETTERS else _git_digest(path)):
        raise UserError(
            f"{wanted.asked}: {path.name} of {wanted.repository} is not what the hub states: its digest should be "
            f"{stated}, the file's SHA-256 is {found}.\nIt was damaged or replaced and is not used: "
            f"delete {path.resolve()} to fetch it again"
        )
    return found


def _git_digest(path: Path) -> str:
    """Computes the SHA-1 that git gives a file."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
