"""Forward pass against the peers: the same architecture and weights, interleaved in one run, as ratios.

    python bench/forward.py [--rounds 15] [--peers timm] [--least 0.97] [--json bench/forward.json]

A ratio is the peer's time over ours for one round, the two timed one right after the other; above 1 we are faster.
Median and the middle half of the rounds are given. Two models that take turns see the same machine, whatever else
it does meanwhile.
"""

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from vitrail.checkpoints import huggingface, timm, torchvision
from vitrail.checkpoints.peers import import_peer
from vitrail.models.vit import ViT

CASES = [("B/16", 8), ("B/16", 1), ("Ti/16", 1), ("Ti/16", 16), ("S/16", 8)]


def twins(model: ViT) -> dict[str, nn.Module]:
    """The same model in the peers' code."""
    config, state = model.config, model.state_dict()
    architecture, arguments = timm.describe(config)
    theirs: dict[str, nn.Module] = {
        "timm": import_peer("timm").create_model(architecture, num_classes=config.num_classes, **arguments)
    }
    theirs["timm"].load_state_dict(state)
    transformers = import_peer("transformers")
    settings = transformers.ViTConfig(**huggingface.config_json(config, model.card, {}))
    theirs["transformers"] = transformers.ViTForImageClassification(settings)
    rules = list(huggingface.rules(config, "vit.", huggingface.MEMORY))
    parts = [zip(rule.foreign, rule.write(state[rule.native]), strict=True) for rule in rules]
    theirs["transformers"].load_state_dict({name: tensor for pairs in parts for name, tensor in pairs})
    theirs["torchvision"] = import_peer("torchvision").models.VisionTransformer(
        config.rows_columns[0], config.patch_size, config.depth, config.num_heads, config.width, config.mlp_dim
    )
    theirs["torchvision"].load_state_dict(torchvision.to_torchvision(state, config))
    return {name: module.eval() for name, module in theirs.items()}


def seconds(function: Callable[[Tensor], Any], images: Tensor, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        function(images)
    return (time.perf_counter() - start) / repeats


def compare(name: str, batch: int, rounds: int, peers: list[str]) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = vitrail.create(name)
    assert isinstance(model, ViT)
    nn.init.normal_(model.get_parameter("head.weight"), std=0.02)
    images = torch.randn(batch, 3, 224, 224)
    rows = []
    for peer, twin in twins(model).items():
        if peer not in peers:
            continue
        logits = twin(images)
        difference = ((logits if isinstance(logits, Tensor) else logits.logits) - model(images)).abs().max().item()
        assert difference <= 1e-4, f"{peer} computes something else: {difference}"
        repeats = max(1, round(0.25 / seconds(model, images, 2)))
        ratios, ours = [], []
        for turn in range(rounds):
            pair = [(model, "ours"), (twin, "theirs")]
            times = {who: seconds(module, images, repeats) for module, who in (pair if turn % 2 else pair[::-1])}
            ratios.append(times["theirs"] / times["ours"])
            ours.append(times["ours"])
        low, _, high = statistics.quantiles(ratios, n=4)
        rows.append(
            {
                "what": f"forward {name} batch {batch}",
                "subject": "vitrail",
                "peer": peer,
                "ratio": round(statistics.median(ratios), 3),
                "spread": [round(low, 3), round(high, 3)],
                "unit": "peer's time / ours",
                "images_per_second": round(batch / statistics.median(ours), 1),
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
    threads = torch.get_num_threads()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, torch {torch.__version__}"
    print(f"{machine}; median of {options.rounds} interleaved rounds [middle half]")
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
        options.json.write_text(json.dumps({"machine": machine, "rounds": options.rounds, "rows": results}, indent=2))
    if options.least and any(row["ratio"] < options.least for row in results):
        raise SystemExit(f"a ratio is below {options.least}")


if __name__ == "__main__":
    main()
