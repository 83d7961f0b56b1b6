#!/bin/sh
# A tour in four minutes: what there is, what it costs, a model trained, evaluated, taught other data the quick way,
# looked into and converted.
set -eu
out=${1:-runs/demo}
rm -rf "$out"
mkdir -p "$out"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "The models, by the paper's names"
vitrail models

say "What pre-training B/16 on JFT-300M costs (the paper's Table 6 says 224 exaFLOPs)"
vitrail plan B/16 --images 303000000 --epochs 7 --flops-per-second 1e15

say "A model, trained on embedded data"
vitrail train --out "$out/run"

say "Evaluated, as the bundle says its images are prepared"
vitrail evaluate "$out/run" --data mnist5k

say "The quick way to another data set: a head in closed form on the model's features, in seconds"
vitrail finetune "$out/run" --data digits --quick --out "$out/quick"

say "Looked into: what it attends to, and what its answers rest on"
vitrail inspect "$out/run" --out "$out/inside"

say "To timm's format and back, with parity reports"
vitrail convert "$out/run" "$out/model.safetensors" --to timm | tail -n 3
vitrail convert "$out/model.safetensors" "$out/again" --to bundle | tail -n 3

say "A data set, checked"
vitrail data check digits --out "$out/data-check"

say "The report of the training is $out/run/report.html, what the model sees $out/inside/report.html"
