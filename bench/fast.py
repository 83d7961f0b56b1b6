"""What --fast gains: the fastest within a loss on real weights, beside timm's eager model.

    VITRAIL_ASSETS=... python bench/fast.py [--max-drop 1.0] [--rounds 15] [--least 2.0 2.5] [--json bench/fast.json]

First the search: DeiT-Ti/16 on the sample photos, int8 and merged tokens on ONNX Runtime, top-1 of each. Then speed,
taking turns with timm: Ti/16 at batch 16 with those weights, B/16 at batch 8 with random ones and the same settings.
"""

import argparse
import json
import os
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch

import vitrail
from vitrail.inference.fast import Candidate, Outcome, Workshop, check_batches, most_merged, search
from vitrail.inference.speed import interleave, machine, ratio
from vitrail.inference.twins import twin
from vitrail.models.vit import ViT


def find(model: ViT, data: Path, folder: Path, max_drop: float) -> tuple[Outcome, Workshop]:
    workshop = Workshop(model, folder, check_batches(model, str(data), split="all", batch_size=16), batch_size=16)
    most = most_merged(model.config)
    return search(workshop, engines=("onnxruntime",), most=most, max_drop=max_drop, say=print), workshop


def beside_timm(
    name: str, model: ViT, workshop: Workshop, chosen: Candidate, batch: int, rounds: int
) -> dict[str, Any]:
    theirs = twin("timm", model, workshop.folder)
    images = torch.randn(batch, 3, *model.config.rows_columns)
    fast, plain = (workshop.engine(each) for each in (chosen, Candidate("onnxruntime")))
    runs = {
        "timm": partial(theirs.run, images),
        "fast": partial(fast.logits, images.numpy()),
        "plain": partial(plain.logits, images.numpy()),
    }
    with torch.inference_mode():
        times = interleave(runs, rounds)
    found = ratio(times["fast"], times["timm"])
    row = {"what": f"fast {name} batch {batch}", "subject": str(chosen), "peer": "timm"}
    row |= {"ratio": round(found.ratio, 3), "spread": [round(each, 3) for each in found.spread]}
    print(f"{row['what']:<24} {chosen}: {found.ratio:.2f} x timm [{found.spread[0]:.2f}, {found.spread[1]:.2f}]")
    print(f"{'':<24} unchanged on ONNX Runtime: {ratio(times['plain'], times['timm']).ratio:.2f} x timm")
    return {**row, "unit": "peer's time / ours"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-drop", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--least", type=float, nargs=2, help="exit 1 if Ti/16 or B/16 gains less")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    assets = Path(os.environ.get("VITRAIL_ASSETS", "assets"))
    warnings.simplefilter("ignore")
    print(f"{machine()}; median of {options.rounds} interleaved rounds [middle half]")
    tiny = vitrail.load(assets / "deit-ti16.safetensors", labels=assets / "imagenet-labels.json")
    torch.manual_seed(0)
    base = vitrail.create("B/16")
    assert isinstance(tiny, ViT)
    assert isinstance(base, ViT)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        outcome, workshop = find(tiny, assets / "imagenet-sample", Path(first), options.max_drop)
        chosen = outcome.chosen.candidate
        print(f"{chosen}: top-1 {outcome.plain.top1:.1%} -> {outcome.chosen.top1:.1%}")
        rows = [beside_timm("Ti/16", tiny, workshop, chosen, 16, options.rounds)]
        rows.append(beside_timm("B/16", base, Workshop(base, Path(second), list), chosen, 8, options.rounds))
    if options.json:
        top1 = {"plain": outcome.plain.top1, "fast": outcome.chosen.top1}
        document = {"machine": machine(), "rounds": options.rounds, "top1": top1, "rows": rows}
        options.json.write_text(json.dumps(document, indent=2))
    if options.least is not None:
        sys.exit(any(row["ratio"] < least for row, least in zip(rows, options.least, strict=True)))


if __name__ == "__main__":
    main()
