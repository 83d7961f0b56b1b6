"""--patience N: the run stops after so many evaluations without a better one, resumed or not, and says why."""

import json
from pathlib import Path

import pytest

import vitrail
from tests.training.test_loop import settings, some_batch, trainer
from vitrail.config import DataConfig
from vitrail.errors import UserError
from vitrail.train import fit
from vitrail.training.progress import Silent

SCORES = [0.2, 0.5, 0.4, 0.5, 0.6, 0.5, 0.5, 0.5, 0.9, 0.9]
"""Of each evaluation in turn; the fourth equals the best and has a higher loss."""


def run_of(folder: Path, patience: int, until: int = 99):
    """Ten steps, evaluated after each; `until`: the step before which it is killed."""
    run = trainer(
        settings(steps=10, evaluate_every=1, snapshot_every=2, patience=patience), some_batch(), folder=folder
    )

    def batches(_position):
        while True:
            if run.progress.step == until:
                raise KeyboardInterrupt
            yield some_batch()

    run.batches = batches
    run.evaluate = lambda _: {"top1": SCORES[run.progress.step - 1], "loss": float(run.progress.step)}
    return run


@pytest.mark.parametrize(("patience", "steps"), [(0, 10), (2, 4), (3, 8), (4, 10)])
def test_it_stops_after_so_many_evaluations_without_a_better_one(tmp_path, patience, steps):
    run = run_of(tmp_path, patience)
    run.fit(Silent())
    assert run.progress.step == steps
    assert run.stopped_early == (steps < 10)
    if patience == 3:
        assert run.why_it_stopped() == (
            "stopped at step 8 of 10: 3 evaluations in a row were no better than that of step 5 (--patience 3)"
        )


@pytest.mark.parametrize("killed_at", [1, 3, 6, 7])
def test_a_resumed_run_stops_at_the_same_step(tmp_path, killed_at):
    first = run_of(tmp_path, 3, until=killed_at)
    with pytest.raises(KeyboardInterrupt):
        first.fit(Silent())
    second = run_of(tmp_path, 3)
    second.resume()
    second.fit(Silent())
    assert (second.progress.step, second.progress.best_step) == (8, 5)
    third = run_of(tmp_path, 3)  # stopped already: not a step more
    third.resume()
    third.fit(Silent())
    assert (third.progress.step, third.stopped_early) == (8, True)


def test_the_learning_rate_is_that_of_the_whole_run(tmp_path):
    rates = []
    for patience in (0, 2):
        run = run_of(tmp_path / str(patience), patience)
        step = run.step
        found = []
        run.step = lambda batches, step=step, found=found: found.append(numbers := step(batches)) or numbers
        run.fit(Silent())
        rates.append([numbers["lr"] for numbers in found])
    assert rates[1] == rates[0][:4]


def test_the_run_and_its_report_say_why_it_stopped(tmp_path, capsys):
    config = vitrail.recipe("digits")
    still = config.with_(epochs=None, steps=40, evaluate_every=2, patience=2, ema=0.0)
    still = still.with_(optimizer=vitrail.config.OptimizerConfig("sgd", lr=1e-12, weight_decay=0.0))
    result = fit(still, tmp_path / "run")
    assert result.steps < 40
    said = result.metrics["stopped"]
    assert said.startswith(f"stopped at step {result.steps} of 40: 2 evaluations in a row")
    assert said in capsys.readouterr().err
    assert "2 evaluations in a row were no better" in (tmp_path / "run/report.html").read_text()
    again = fit(still, tmp_path / "run", resume=True, report=False)
    assert (again.steps, again.metrics["stopped"]) == (result.steps, said)
    assert json.loads((tmp_path / "run/config.json").read_text())["train"]["patience"] == 2


def test_without_a_validation_split_it_is_refused(tmp_path):
    config = vitrail.recipe("digits").with_(data=DataConfig("digits", val_fraction=0.0), patience=2)
    with pytest.raises(UserError, match=r"--patience needs a validation split.*--data.val-fraction"):
        fit(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
