"""Forward pass against the peers: the same architecture and weights, interleaved in one run, as ratios.

    python bench/forward.py [--rounds 15] [--peers timm] [--least 0.97] [--json bench/forward.json]

A ratio is the peer's time over ours for one round, the two timed one right after the other; above 1 we are faster.
Median and the middle half of the rounds are given. Two models that take turns see the same machine, whatever else
it does meanwhile. `vitrail bench` compares with more peers, and with our other engines.
"""

import argparse
import json
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import vitrail
from vitrail.checkpoints.peers.libraries import PeerMissing
from vitrail.checkpoints.peers.models import peer_model
from vitrail.inference.speed import interleave, machine, ratio
from vitrail.models.vit import ViT

CASES = [("B/16", 8), ("B/16", 1), ("Ti/16", 1), ("Ti/16", 16), ("S/16", 8)]


def compare(name: str, batch: int, rounds: int, peers: list[str]) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = vitrail.create(name)
    assert isinstance(model, ViT)
    nn.init.normal_(model.get_parameter("head.weight"), std=0.02)
    images = torch.randn(batch, 3, 224, 224)
    rows = []
    for peer in peers:
        try:
            with tempfile.TemporaryDirectory() as folder:
                theirs = peer_model(peer, model, Path(folder))
        except PeerMissing as error:
            print(f"without {peer}: {error}")
            continue
        difference = (theirs.run(images) - model(images)).abs().max().item()
        assert difference <= 1e-4 or not theirs.same, f"{peer} computes something else: {difference}"
        runs = {"vitrail": lambda: model(images), peer: lambda run=theirs.run: run(images)}
        times = interleave(runs, rounds)
        found = ratio(times["vitrail"], times[peer])
        rows.append(
            {
                "what": f"forward {name} batch {batch}",
                "subject": "vitrail",
                "peer": peer,
                "ratio": round(found.ratio, 3),
                "spread": [round(each, 3) for each in found.spread],
                "unit": "peer's time / ours",
                "images_per_second": round(batch / statistics.median(times["vitrail"]), 1),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peers", nargs="*", default=["timm", "transformers", "torchvision"])
    parser.add_argument("--least", type=float, help="exit 1 if a ratio is below this")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{machine()}; median of {options.rounds} interleaved rounds [middle half]")
    results = []
    with torch.inference_mode():
        for name, batch in CASES:
            for row in compare(name, batch, options.rounds, options.peers):
                results.append(row)
                print(
                    f"{row['what']:<26} vs {row['peer']:<13} {row['ratio']:.3f} "
                    f"[{row['spread'][0]:.3f}, {row['spread'][1]:.3f}]   {row['images_per_second']:.1f} images/s"
                )
    if options.json:
        document = {"machine": machine(), "rounds": options.rounds, "rows": results}
        options.json.write_text(json.dumps(document, indent=2))
    if options.least and any(row["ratio"] < options.least for row in results):
        raise SystemExit(f"a ratio is below {options.least}")


if __name__ == "__main__":
    main()
