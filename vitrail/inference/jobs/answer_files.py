"""Writes a file for each answer that lies in its picture: its mask, or the picture with the answer drawn over it.

A file appears when it is complete, and before its row is written, so a job that was stopped goes on without gaps.
"""

import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.data.bad_image import BadImage
from vitrail.data.decode import decode
from vitrail.data.decode_pool import BoundedDecoder, DecodeLimits
from vitrail.data.inputs import Input, Prepared
from vitrail.environment import rank
from vitrail.errors import UserError
from vitrail.inference.jobs.sorting import base_name, put_in_place
from vitrail.tasks.answers import Answer, Prediction
from vitrail.tasks.base import Meaning

_QUALITY = 90


@dataclass(frozen=True)
class AnswerFiles:
    """The folders that answers are drawn or written into, a file for each picture."""

    masks: Path | None = None
    """The folder of masks."""
    overlay: Path | None = None
    """The folder of pictures with the answer drawn over them."""
    limits: DecodeLimits | None = None
    """What decoding a picture again may take."""

    def check(self, resume: bool) -> None:
        """Raises a UserError if a folder holds files already and the job does not go on with an earlier one."""
        for flag, folder in (("--masks", self.masks), ("--overlay", self.overlay)):
            if folder is None:
                continue
            if folder.exists() and not folder.is_dir():
                raise UserError(f"{flag} {folder}: is a file; give a folder")
            if not resume and folder.is_dir() and any(folder.iterdir()):
                raise UserError(f"{flag} {folder}: holds files already; give a new folder, or --resume to go on")
        if self.masks is not None and self.masks == self.overlay:
            raise UserError(f"--masks and --overlay are both {self.masks}: give two folders")

    def write(
        self,
        inputs: Iterable[Input],
        predictions: Callable[[Iterable[Input]], Iterable[list[Prediction]]],
        answer: Answer,
        meaning: Meaning,
    ) -> Iterator[list[Prediction]]:
        """Yields the predictions, each after its files were written.

        Args:
            inputs: The pictures.
            predictions: Yields a prediction for each input, in their order, one list for each batch.
            answer: The task's.
            meaning: What the model's outputs stand for.
        """
        waiting: deque[Input] = deque()

        def remembered() -> Iterator[Input]:
            """Yields the inputs, and keeps each until its answer comes."""
            for each in inputs:
                waiting.append(each)
                yield each

        for batch in predictions(remembered()):
            yield [self._written(waiting.popleft(), each, answer, meaning) for each in batch]

    def _written(self, picture: Input, prediction: Prediction, answer: Answer, meaning: Meaning) -> Prediction:
        """Writes the files of one answer; returns it with the path of its mask."""
        if prediction.error is not None:
            return prediction
        name = base_name(picture.path or "picture")
        stem = name.rpartition(".")[0] or name
        if self.overlay is not None:
            _put(self.overlay, f"{stem}.jpg", _jpeg(answer.painted(prediction, self._pixels(picture), meaning)))
        if self.masks is None:
            return prediction
        return answer.with_mask_file(
            prediction, str(_put(self.masks, f"{stem}.png", answer.mask_file(prediction, meaning)))
        )

    def _pixels(self, picture: Input) -> np.ndarray:
        """Decodes a picture in its own pixels, upright: uint8 [rows, columns, 3]."""
        try:
            content = picture.read()
            if isinstance(content, Prepared):
                raise UserError("--overlay: input that is prepared already is no picture to draw over")
            limits = (self.limits or DecodeLimits()).for_whole_pictures()
            return BoundedDecoder(limits)(decode, content)
        except BadImage as error:  # it changed since it was answered
            raise UserError(f"{picture.path}: {error}") from error


def _jpeg(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=_QUALITY)
    return stream.getvalue()


def _put(folder: Path, name: str, content: bytes) -> Path:
    """Writes a file into a folder under the first free name; returns the resulting file."""
    temporary = folder / f".writing-{rank()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        temporary.write_bytes(content)
        target = put_in_place(temporary, folder, name)
        temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return target
