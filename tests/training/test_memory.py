"""A training that does not fit into memory is refused before it begins, with what would fit."""

import json
import re
from pathlib import Path

import pytest
import torch

import vitrail
from tests.conftest import toy
from vitrail.cli import main
from vitrail.config import DataConfig, TrainConfig
from vitrail.models.sizes import config_for
from vitrail.recipes import recipe
from vitrail.run import _model
from vitrail.training.memory import check_memory, free_memory, planned

CPU = torch.device("cpu")


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """Runs a command in a folder of its own, with so much memory; its exit status and what it said."""
    monkeypatch.chdir(tmp_path)

    def run(memory: str, *arguments: str) -> tuple[int, str]:
        monkeypatch.setenv("VITRAIL_MEMORY", memory)
        status = 0
        try:
            main(list(arguments))
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        return status, said.out + said.err

    return run


def test_what_does_not_fit_is_refused_and_each_remedy_fits(told):
    arguments = ["train", "digits", "--steps", "1", "--out"]
    status, said = told("6MB", *arguments, "run")
    assert status == 2
    needed = planned(recipe("digits"))
    assert f"64 images at a time is planned to take {needed / 1e6:.1f} MB of memory, and 6.0 MB are free" in said
    assert not Path("run").exists(), "nothing is left behind"
    remedies = re.findall(r"(--[a-z][^()]*) \(([0-9.]+) MB\)", said)
    assert len(remedies) == 2
    for number, (flags, size) in enumerate(remedies):
        assert float(size) <= 6.0
        status, said = told("6MB", *arguments, f"run{number}", *flags.split())
        assert status == 0, said
    again = re.search(r"VITRAIL_MEMORY=(\S+)", told("6MB", *arguments, "run")[1])
    assert again
    assert told(again[1], *arguments, "run")[0] == 0


def test_it_is_the_count_of_the_plan(capsys):
    for name in ("digits", "mnist5k", "deit-b16-in1k", "finetune-cifar10"):
        main(["plan", name, "--json"])
        assert planned(recipe(name)) == json.loads(capsys.readouterr().out)["memory_bytes"]["total"]
    config = recipe("deit-b16-in1k")
    halves = planned(config.with_(accumulate=2))
    assert 0.5 * planned(config) < halves < 0.6 * planned(config)
    assert planned(config.with_(parallel="fsdp"), processes=8) < planned(config, processes=8)


def test_no_machine_has_memory_for_this(tmp_path, monkeypatch):
    monkeypatch.delenv("VITRAIL_MEMORY", raising=False)
    config = TrainConfig(model=config_for("B/16"), batch_size=1 << 20, steps=1, data=DataConfig("digits"), device="cpu")
    with pytest.raises(vitrail.UserError, match=r"B/16 at 224 x 224 px .* planned to take .* GB are free: give"):
        vitrail.fit(config, tmp_path / "run")
    check_memory(config.with_(freeze="backbone"), CPU)


def test_what_is_advised_where_no_batch_fits(told):
    status, said = told("1MB", "train", "digits", "--out", "run")
    assert status == 2
    assert "give a smaller model, or smaller pictures (--model.image-size)" in said


def test_a_size_that_cannot_be_read_is_refused(told):
    status, said = told("much", "train", "digits", "--out", "run")
    assert status == 2
    assert "VITRAIL_MEMORY 'much' is not a size" in said


def files(folder: Path, **content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_least_of_machine_and_containers_is_free(tmp_path, monkeypatch):
    monkeypatch.delenv("VITRAIL_MEMORY", raising=False)
    system, groups = tmp_path / "proc", tmp_path / "groups"

    def free() -> int | None:
        return free_memory(CPU, system, groups)

    assert free() is None, "nothing tells"
    files(system, meminfo="MemTotal: 9000 kB\nMemFree: 100 kB\nMemAvailable:    8000 kB\n")
    files(system / "self", cgroup="0::/outer/inner\n")
    assert free() == 8000 * 1024
    files(groups / "outer/inner", memory__max="max\n", memory__current="500\n", memory__stat="inactive_file 1\n")
    assert free() == 8000 * 1024, "a group without a limit"
    stat = "anon 3\ninactive_file 1000\nactive_file 7\n"
    files(groups / "outer", memory__max="6000\n", memory__current="2000\n", memory__stat=stat)
    assert free() == 5007, "the limit of a group above; cached files give way"
    files(system / "self", cgroup="5:cpu:/x\n4:memory:/job\n0::/\n")
    stat = "inactive_file 9\ntotal_inactive_file 100\n"
    files(groups / "memory/job", memory__limit_in_bytes="3000", memory__usage_in_bytes="900", memory__stat=stat)
    assert free() == 2200, "the older kind of groups"
    assert (free_memory(CPU) or 1) > 0, "of this machine"


def test_fine_tuning_checkpoints_gradients_where_asked_to(tmp_path):
    model = toy()
    vitrail.save(model, tmp_path / "model")
    asked = model.config.with_(gradient_checkpointing=True)
    config = TrainConfig(model=asked, steps=1, init_from=str(tmp_path / "model"))
    assert _model(config).config.gradient_checkpointing
    assert not _model(config.with_(model=model.config)).config.gradient_checkpointing
