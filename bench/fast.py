"""What --fast gains, and whether it keeps its promise: real weights, beside timm's eager model.

    VITRAIL_ASSETS=... python bench/fast.py [--max-drop 1.0] [--rounds 15] [--halves 20] [--json bench/fast.json]

First the search: DeiT-Ti/16 on the sample photos, int8 and merged tokens on ONNX Runtime, the loss of each with its
bound. Then speed, taking turns with timm: Ti/16 at batch 16 with those weights, B/16 at batch 8 with random ones and
the same settings. Last the promise: the search chooses on one random half of the photos, and what it keeps is counted
on the other half, which it did not see; so many times.
"""

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitrail
from vitrail.checkpoints.peers.models import peer_model
from vitrail.inference.accuracy_drop import Drop, estimate_drop
from vitrail.inference.compare import CheckSet
from vitrail.inference.engines.facts import ExportMetadata
from vitrail.inference.search import PLAIN_CANDIDATE, Candidate, SearchResult, Workshop, most_merged, search
from vitrail.inference.speed import interleave, machine, ratio
from vitrail.models.vit import ViT


class Recorder:
    """A workshop whose logits are kept, so that a search can be made again on some of its pictures."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop, self.labels = workshop, np.empty(0, int)
        self._logits: dict[Candidate, np.ndarray] = {}

    def logits(self, candidate: Candidate) -> np.ndarray:
        if candidate not in self._logits:
            self._logits[candidate], self.labels = self.workshop.logits(candidate)
        return self._logits[candidate]

    def drop(self, candidate: Candidate, tests: int) -> Drop:
        return estimate_drop(self.logits(PLAIN_CANDIDATE), self.logits(candidate), self.labels, tests=tests)

    def speedups(self, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
        return self.workshop.speedups(candidates)


class Half:
    """A judge that sees some of the pictures; as a speed it takes what the whole search found to be faster."""

    def __init__(self, whole: Recorder, seen: np.ndarray) -> None:
        self.whole, self.seen = whole, seen

    def drop(self, candidate: Candidate, tests: int) -> Drop:
        before, after = (self.whole.logits(each)[self.seen] for each in (PLAIN_CANDIDATE, candidate))
        return estimate_drop(before, after, self.whole.labels[self.seen], tests=tests)

    def speedups(self, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
        return {each: (2.0 if each.int8 else 1.0) * (1 + each.merge_tokens / 20) for each in candidates}


def find(model: ViT, data: Path, folder: Path, max_drop: float) -> tuple[SearchResult, Recorder]:
    pictures = CheckSet(ExportMetadata.of(model.config, model.card), str(data), split="all", batch_size=16)
    judge = Recorder(Workshop(model, folder, pictures, batch_size=16))
    most = most_merged(model.config)
    return search(judge, engines=("onnxruntime",), most=most, max_drop=max_drop, say=print), judge


def halves(judge: Recorder, most: int, max_drop: float, count: int) -> list[dict[str, Any]]:
    """Chooses on random halves of the pictures and counts on the others."""
    plain, rows, order = judge.logits(PLAIN_CANDIDATE), [], np.random.default_rng(0)
    for _ in range(count):
        places = order.permutation(len(plain))
        seen, others = np.split(places, [len(places) // 2])
        chosen = search(Half(judge, seen), engines=("onnxruntime",), most=most, max_drop=max_drop).chosen
        after, labels = judge.logits(chosen.candidate), judge.labels[others]
        lost = estimate_drop(plain[others], after[others], labels)
        row = {"kept": str(chosen.candidate), "bound": chosen.drop.bound, "counted": lost.counted}
        rows.append({**row, "expected": lost.expected, "held": lost.counted <= chosen.drop.bound})
        print(f"  {row['kept']}: bound {row['bound']:.2f}; the other half lost {lost.counted:.2f}", flush=True)
    n, held = len(plain) - len(plain) // 2, sum(row["held"] for row in rows)
    print(f"the loss on the other {n} photos stayed under the printed bound in {held} of {count} random halves")
    return rows


def beside_timm(
    name: str, model: ViT, workshop: Workshop, chosen: Candidate, batch: int, rounds: int
) -> dict[str, Any]:
    theirs = peer_model("timm", model, workshop.folder)
    images = torch.randn(batch, 3, *model.config.rows_columns)
    fast, plain = (workshop.engine(each) for each in (chosen, Candidate("onnxruntime")))
    runs = {
        "timm": partial(theirs.run, images),
        "fast": partial(fast.outputs, images.numpy()),
        "plain": partial(plain.outputs, images.numpy()),
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
    parser.add_argument("--halves", type=int, default=20, help="random halves to try the promise on")
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
        outcome, judge = find(tiny, assets / "imagenet-sample", Path(first), options.max_drop)
        chosen = outcome.chosen.candidate
        print(f"chosen: {chosen}: {outcome.chosen.drop.sentence()}")
        rows = [beside_timm("Ti/16", tiny, judge.workshop, chosen, 16, options.rounds)]
        rows.append(beside_timm("B/16", base, Workshop(base, Path(second), ()), chosen, 8, options.rounds))
        tried = halves(judge, most_merged(tiny.config), options.max_drop, options.halves)
    if options.json:
        drops = {str(trial.candidate): trial.drop.to_json() for trial in outcome.trials}
        document = {"machine": machine(), "rounds": options.rounds, "drops": drops, "rows": rows, "halves": tried}
        options.json.write_text(json.dumps(document, indent=2))
    if options.least is not None:
        sys.exit(any(row["ratio"] < least for row, least in zip(rows, options.least, strict=True)))


if __name__ == "__main__":
    main()
