"""`vitrail convert`: converts weights from one format to another, with a parity report."""

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitrail.checkpoints.formats import FORMATS
from vitrail.cli import emit_json, note
from vitrail.cli.model_flags import Flags, NamedWeights

if TYPE_CHECKING:
    Target = str
else:
    Target = Literal[("bundle", *FORMATS)]
"""The formats that can be written."""
NUMBERED = re.compile(r"(blocks\.|layers?\.|encoderblock_|encoder_layer_|stages\.|block|unit)\d+")
"""The number of a block in a tensor's name."""


def command(
    source: Annotated[str, tyro.conf.Positional],
    destination: Annotated[Path, tyro.conf.Positional],
    *,
    to: Target = "bundle",
    overwrite: bool = False,
    no_check: bool = False,
    weights: Annotated[NamedWeights, Flags] = NamedWeights(),
    json: bool = False,
) -> None:
    """Converts weights, and reports which tensors were mapped, dropped or created, and how far the logits are apart.

    The source may be a bundle or run folder, a timm or Hugging Face folder, a .safetensors, .npz or .pth file,
    hf:owner/name, or the name of published weights such as Ti/16 (vitrail models --weights). Its format, size and grid
    are recognised from the tensors.

    Args:
        source: The weights to convert.
        destination: What to write: a folder for bundle and huggingface; .npz for google; a folder, .safetensors or .pth
            for timm; .safetensors or .pth for torchvision and others.
        to: The format to write.
        overwrite: Replace the destination if it exists.
        no_check: Do not run both models to compare their logits.
        json: Print one JSON document.
    """
    from vitrail.checkpoints.convert import convert

    report = convert(
        source,
        destination,
        to,
        **weights.options(),
        overwrite=overwrite,
        check=not no_check,
    )
    if json:
        for line in report.notes:
            note(line)
        emit_json(report.to_json())
        return
    print(f"{report.source}\n  -> {report.result}\n")
    print(f"mapped {sum(len(row['source']) for row in report.mapped)} tensors")
    for (before, after), times in Counter(map(_pattern, report.mapped)).items():
        count = f" x {times}" if times > 1 else ""
        print(f"  {before}  ->  {after}{count}" if before != after else f"  {after}{count}")
    for title, rows in (("dropped", report.dropped), ("made up", report.created)):
        print(f"{title} {len(rows)} tensors")
        for name, reason in rows.items():
            print(f"  {name}: {reason}")
    for line in report.notes:
        print(f"note: {line}" if not line.startswith("WARNING") else line)
    if report.max_logit_difference is None:
        print(report.compared or "logits were not compared")
    else:
        print(f"largest difference {report.max_logit_difference:.2e} ({report.compared})")


def _pattern(row: dict[str, list[str]]) -> tuple[str, str]:
    """Replaces the numbers of blocks in a row by *, so that the blocks of a model are printed as one line."""

    def short(names: list[str]) -> str:
        """Joins names, without numbers of blocks."""
        return " + ".join(NUMBERED.sub(r"\1*", name) for name in names)

    return short(row["source"]), short(row["result"])
