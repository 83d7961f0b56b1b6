#!/bin/sh
# A tour in a minute: what there is, what it costs, a model to and from every format, a data set checked.
set -eu
out=${1:-runs/demo}
rm -rf "$out"
mkdir -p "$out"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "The models, by the paper's names"
vitrail models

say "What pre-training B/16 on JFT-300M costs (the paper's Table 6 says 224 exaFLOPs)"
vitrail plan B/16 --images 303000000 --epochs 7 --flops-per-second 1e15

say "A model, to Google's format, to Hugging Face's and back, with parity reports"
python - "$out" <<'PYTHON'
import sys
import vitrail

model = vitrail.create("Ti/16", num_classes=10, activation="gelu_tanh")
model.head.weight.data.normal_(std=0.02)
vitrail.save(model, f"{sys.argv[1]}/model")
PYTHON
vitrail convert "$out/model" "$out/model.npz" --to google | tail -n 4
vitrail convert "$out/model.npz" "$out/huggingface" --to huggingface | tail -n 4
vitrail convert "$out/huggingface" "$out/again" --to bundle | tail -n 4

say "A data set, checked"
vitrail data check digits --out "$out/data-check"

say "All of it is in $out"
