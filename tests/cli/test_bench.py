"""`vitrail bench`: what it prints and keeps, at a size that takes seconds. That it is right is no question of speed."""

import json

import pytest
from PIL import Image

from vitrail.checkpoints.peers import libraries, models
from vitrail.checkpoints.peers.libraries import PeerMissing
from vitrail.cli import main

SMALL = ["bench", "--models", "Ti/16", "--image-size", "32", "--rounds", "2", "--engines", "torch"]


def test_rows_have_the_agreed_keys_and_every_pair_is_there(peers, capsys):
    main([*SMALL, "--batch", "1", "2", "--peers", "timm", "transformers", "torchvision", "vit-pytorch", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert all(set(row) == {"what", "subject", "peer", "ratio", "spread", "unit"} for row in rows)
    compared = [row for row in rows if row["unit"] == "peer's time / ours"]
    assert {(row["what"], row["peer"]) for row in compared} == {
        (f"forward Ti/16 batch {batch}", peer)
        for batch in (1, 2)
        for peer in ("timm", "transformers", "torchvision", "vit-pytorch")
    }
    for row in rows:
        assert row["spread"][0] <= row["ratio"] <= row["spread"][1]
    shares = [row for row in rows if row["unit"] == "share of the machine's peak"]
    assert len(shares) == 2
    assert all(0 < row["ratio"] < 1.5 for row in shares)
    assert [row["peer"] for row in rows if row["unit"] == "GFLOP/s"] == ["matrix product"] * 2


def test_table_picture_and_file(peers, tmp_path, capsys):
    main([*SMALL, "--batch", "1", "--peers", "timm", "--out", str(tmp_path / "new" / "folder")])
    shown = capsys.readouterr().out
    for words in ("forward Ti/16 batch 1", "x timm", "vitrail torch", "of the peak"):
        assert words in shown
    document = json.loads((tmp_path / "new" / "folder" / "bench.json").read_text())
    assert document["rounds"] == 2
    assert "torch" in document["machine"]
    with Image.open(tmp_path / "new" / "folder" / "bench.png") as picture:
        assert picture.size[0] > 500


def test_a_peer_that_is_not_installed_is_left_out_with_a_note(peers, monkeypatch, capsys):
    def without(name: str):
        if name == "transformers":
            raise PeerMissing("transformers is not installed")
        return libraries.import_peer(name)

    monkeypatch.setattr(models, "import_peer", without)
    main([*SMALL, "--batch", "1", "--peers", "timm", "transformers", "--json"])
    captured = capsys.readouterr()
    assert "without transformers: transformers is not installed" in captured.err
    rows = json.loads(captured.out)
    assert {row["peer"] for row in rows} == {"timm", "matrix product"}


def test_a_peer_that_computes_something_else_stops_the_bench(peers, monkeypatch):
    monkeypatch.setattr(models, "_timm", lambda model: lambda images: model(images) + 0.01)
    with pytest.raises(AssertionError, match="timm computes something else"):
        main([*SMALL, "--batch", "1", "--peers", "timm"])


@pytest.mark.slow
def test_all_peers_and_engines_run_beside_each_other(peers, capsys):
    main(["bench", "--models", "Ti/16", "--image-size", "32", "--batch", "2", "--rounds", "3", "--json"])
    rows = [row for row in json.loads(capsys.readouterr().out) if row["unit"] == "peer's time / ours"]
    assert {row["subject"] for row in rows} == {"vitrail torch", "vitrail onnxruntime", "vitrail openvino"}
    assert {row["peer"] for row in rows} == set(models.PEERS)


@pytest.mark.parametrize(("arguments", "words"), [
    (["--rounds", "0"], "--rounds"),
    (["--batch", "0"], "--batch"),
    (["--models", "Q/16"], "Q/16"),
    (["--models", "BiT-R50x1"], "BiT-R50x1"),
    (["--out", "a-file"], "is a file"),
])  # fmt: skip
def test_what_the_user_can_fix(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").write_text("")
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *arguments])
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err
