"""Fine-tuning chooses for the size of the data; the search takes the rate that does best on the dev split."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vitrail
from tests.conftest import toy
from tests.training.killing import CONFIG
from vitrail.config import DataConfig, OptimizerConfig
from vitrail.train import fit
from vitrail.training.progress import read_metrics
from vitrail.transfer import RATES, chosen_config, finetuned_config, search_learning_rate

COUNTING = """
import json, os, sys, traceback
weights, code = sys.argv[1:]
openings = []

def record(event, arguments):
    if event == "open" and os.path.abspath(str(arguments[0])) == weights:
        openings.append([frame.name for frame in traceback.extract_stack()])

sys.addaudithook(record)
exec(code)
print(json.dumps([len(openings), sum("file_sha256" in names for names in openings)]))
"""
"""Prints how often some Python code opens a file, and how often it does so for its checksum."""


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> str:
    """A model that has hardly learned anything."""
    out = tmp_path_factory.mktemp("transfer") / "run"
    fit(CONFIG.with_(steps=5, evaluate_every=5, snapshot_every=5), out, report=False)
    return str(out)


def test_the_search_takes_the_rate_that_does_best_on_the_dev_split(start, tmp_path):
    base = CONFIG.with_(
        steps=12, evaluate_every=12, snapshot_every=12, ema=0.0, optimizer=OptimizerConfig("sgd", 0.5, 0.0)
    )
    said: list[str] = []
    found = search_learning_rate(finetuned_config(base, start), tmp_path / "out", said.append)
    reached = {}
    for rate in RATES:
        records = read_metrics(tmp_path / "out-search" / f"{rate:g}")
        reached[rate] = max(record["top1"] for record in records if record["kind"] == "val")
    assert len(set(reached.values())) > 1, "they differ on this material"
    assert reached[found.optimizer.lr] == max(reached.values())
    assert found == finetuned_config(base, start).with_(optimizer=OptimizerConfig("sgd", found.optimizer.lr, 0.0))
    assert len(said) == len(RATES) + 1
    assert not Path(tmp_path / "out").exists(), "the run itself is still to come"


def test_what_is_chosen_follows_the_number_of_training_images(start):
    few = chosen_config(start, "digits")  # 1437 to train on
    assert (few.batch_size, few.steps, few.transform.area) == (32, round(10 * 1437 / 32), (0.3, 1.0))
    assert (few.optimizer.name, few.optimizer.weight_decay, few.optimizer.clip) == ("sgd", 0.0, 1.0)
    assert few.schedule.warmup_steps == few.steps // 10
    assert few.init_from == start


def test_a_fine_tuned_model_drops_as_its_own_configuration_says(start, tmp_path):
    assert vitrail.load(start).config.dropout == 0.1
    base = CONFIG.with_(steps=1, model=CONFIG.model.with_(dropout=0.4, drop_path=0.0), data=DataConfig("digits"))
    fit(finetuned_config(base, start), tmp_path / "run", report=False)
    tuned = vitrail.load(tmp_path / "run")
    assert (tuned.config.dropout, tuned.config.drop_path) == (0.4, 0.0)
    assert tuned.pos_drop.p == 0.4


def openings(weights: Path, code: str) -> list[int]:
    """Returns how often Python code opens a weights file, and how many of these are for its checksum."""
    command = [sys.executable, "-c", COUNTING, str(weights), code]
    ended = subprocess.run(command, cwd=weights.parent.parent, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_fine_tuning_loads_its_model_once_and_compares_the_checksum_once(tmp_path):
    model = toy(image_size=8, patch_size=2, channels=1, depth=1)
    weights = vitrail.save(model, tmp_path / "model") / "model.safetensors"
    once = openings(weights, "import vitrail; vitrail.load('model')")
    assert once[1] == 1 < once[0]
    command = ["finetune", "model", "--data", "digits", "--quick", "--out", "run"]
    assert openings(weights, f"from vitrail.cli import main; main({command})") == once
    call = "vitrail.finetune('model', 'digits', 'again', quick=True)"
    assert openings(weights, f"import vitrail; {call}") == once
    first, second = (vitrail.load(tmp_path / run).state_dict() for run in ("run", "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)
