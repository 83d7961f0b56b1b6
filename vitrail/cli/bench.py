"""`vitrail bench`: compares the speed of our models with the peers', taking turns in one process."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitrail.cli import emit_json, note
from vitrail.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.checkpoints.peers.models import PeerModel
    from vitrail.models.vit import ViT

BenchEngine = Literal["torch", "onnxruntime", "openvino"]
Peer = Literal["timm", "transformers", "torchvision", "vit-pytorch", "onnxruntime", "openvino"]
TIMES = "peer's time / ours"
"""The unit of a ratio of times."""
SHARE = "share of the machine's peak"
"""The unit of a share of the machine's peak."""
LARGEST_DIFFERENCE = 1e-4
"""The largest difference of logits at which two programs count as computing the same."""


def command(
    *,
    models: tuple[str, ...] = ("Ti/16", "S/16", "B/16"),
    batch: tuple[int, ...] = (1, 8),
    peers: tuple[Peer, ...] = ("timm", "transformers", "torchvision", "vit-pytorch", "onnxruntime", "openvino"),
    engines: tuple[BenchEngine, ...] = ("torch", "onnxruntime", "openvino"),
    rounds: int = 9,
    image_size: int = 224,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Compares the forward pass with the peers': the same weights, taking turns, as ratios with their spread.

    A ratio is the peer's time over ours in one round; above 1 we are faster. Printed are the median of the rounds and
    the middle half of them. All must compute the same logits, or the bench stops. The peers onnxruntime and openvino
    run timm's model as PyTorch exports it; our engines run what vitrail export writes. A large matrix product takes
    turns too: it shows the peak speed of the machine, and our speed is also given as a share of it.

    Args:
        models: The models to compare, by name; their weights are random.
        batch: The batch sizes to measure.
        peers: The libraries to compare with; one that is not installed is left out with a note.
        engines: The engines that run our model.
        rounds: The number of rounds; in each, every program takes one turn.
        image_size: The side of the square images, in pixels.
        out: A folder for bench.json and bench.png.
        json: Print one JSON document.
    """
    from vitrail.models.sizes import config_for

    if rounds < 1 or not batch or min(batch) < 1:
        raise UserError("--rounds and --batch must be at least 1")
    if not models or not engines:
        raise UserError("--models and --engines need at least one name")
    for name in models:
        if config_for(name, image_size=image_size).family != "vit":
            raise UserError(f"--models {name}: the bench compares Vision Transformers")
    if out is not None and out.is_file():
        raise UserError(f"--out {out}: is a file; give a folder")

    import warnings

    from vitrail.inference.speed import machine

    rows: list[dict[str, Any]] = []
    if not json:
        print(f"{machine()}; median of {rounds} interleaved rounds [middle half]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the peers
        for name in dict.fromkeys(models):
            for found in _compare(name, image_size, batch, rounds, engines, peers):
                rows += found
                if not json:
                    _show(found)
    if out is not None:
        _keep(out, rows, machine(), rounds)
    if json:
        emit_json(rows)
    elif out is not None:
        print(f"\n{out / 'bench.png'}\n{out / 'bench.json'}")


def _compare(name: str, image_size: int, batches: Any, rounds: int, engines: Any, peers: Any) -> Any:
    """Yields the rows of one model, batch size by batch size."""
    import tempfile

    import torch

    from vitrail.models.build import create
    from vitrail.models.vit import ViT

    torch.manual_seed(0)
    model = create(name, image_size=image_size)
    assert isinstance(model, ViT)
    torch.nn.init.normal_(model.get_parameter("head.weight"), std=0.02)
    with tempfile.TemporaryDirectory(prefix="vitrail-bench-") as folder:
        ours, theirs = _ours(model, engines, Path(folder)), _theirs(model, peers, Path(folder))
        if not ours:
            raise UserError("none of --engines can run here")
        for batch in dict.fromkeys(batches):
            images = torch.randn(batch, model.config.channels, *model.config.rows_columns)
            yield _rows(model, f"forward {name} batch {batch}", images, rounds, ours, theirs)


def _ours(model: "ViT", engines: Any, folder: Path) -> "dict[str, PeerModel]":
    """Opens our model on each engine, by name."""
    import torch

    from vitrail.checkpoints.peers.models import PeerModel
    from vitrail.inference.engines.onnxruntime import OnnxEngine
    from vitrail.inference.engines.openvino import OpenVinoEngine
    from vitrail.inference.export import export

    found: dict[str, PeerModel] = {}
    for name in dict.fromkeys(engines):
        if name == "torch":
            found["vitrail torch"] = PeerModel(model)
            continue
        try:
            path = folder / "ours.onnx"
            if not path.exists():
                export(model, path)
            engine = OnnxEngine(path) if name == "onnxruntime" else OpenVinoEngine(path)
        except UserError as error:
            note(f"without our model on {name}: {error}")
            continue
        found[f"vitrail {name}"] = PeerModel(
            lambda images, engine=engine: torch.from_numpy(engine.outputs(images.numpy()))
        )
    return found


def _theirs(model: "ViT", peers: Any, folder: Path) -> "dict[str, PeerModel]":
    """Opens the model in each peer, by name; those not installed are left out with a note."""
    from vitrail.checkpoints.peers.libraries import PeerMissing
    from vitrail.checkpoints.peers.models import peer_model

    found = {}
    for peer in dict.fromkeys(peers):
        try:
            found[peer] = peer_model(peer, model, folder)
        except PeerMissing as error:
            note(f"without {peer}: {error}")
    return found


def _rows(
    model: "ViT", what: str, images: "Tensor", rounds: int, ours: "dict[str, PeerModel]", theirs: "dict[str, PeerModel]"
) -> list[dict[str, Any]]:
    """Checks that all compute the same logits, measures them, and returns the ratios as rows."""
    import torch

    from vitrail.inference.speed import PEAK, Ratio, interleave, machine, matrix_product, median_and_spread, ratio
    from vitrail.models.cost import cost

    product, flops = matrix_product()
    with torch.inference_mode():
        expected = model(images)
        for name, each in (ours | theirs).items():
            difference = (each.run(images) - expected).abs().max().item()
            assert difference <= LARGEST_DIFFERENCE or not each.same, f"{name} computes something else: {difference}"
        programs = {name: lambda run=each.run: run(images) for name, each in (ours | theirs).items()}
        times = interleave({**programs, PEAK: product}, rounds)

    def row(what: str, subject: str, peer: str, found: Ratio, unit: str) -> dict[str, Any]:
        """Returns one ratio as a row."""
        spread = [round(each, 3) for each in found.spread]
        return {
            "what": what,
            "subject": subject,
            "peer": peer,
            "ratio": round(found.ratio, 3),
            "spread": spread,
            "unit": unit,
        }

    work = 2.0 * cost(model.config).macs * len(images)
    rows = [row(what, name, peer, ratio(times[name], times[peer]), TIMES) for name in ours for peer in theirs]
    for name in ours:
        shares = [work / own / (flops / peak) for own, peak in zip(times[name], times[PEAK], strict=True)]
        rows.append(row(what, name, PEAK, median_and_spread(shares), SHARE))
    peak = median_and_spread([flops / each / 1e9 for each in times[PEAK]])
    return [*rows, row(f"{PEAK} beside {what}", machine(), PEAK, peak, "GFLOP/s")]


def _show(rows: list[dict[str, Any]]) -> None:
    """Prints a table of one case: a line for each peer, a column for each of our engines."""
    from rich.console import Console
    from rich.table import Table

    subjects = list(dict.fromkeys(row["subject"] for row in rows if row["unit"] in (TIMES, SHARE)))
    title = f"{rows[0]['what']} (peak of the machine: {rows[-1]['ratio']:.0f} GFLOP/s)"
    table = Table(box=None, title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for subject in subjects:
        table.add_column(subject, justify="right")
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        low, high = row["spread"]
        if row["unit"] == TIMES:
            text = f"{row['ratio']:.2f} \\[{low:.2f}, {high:.2f}]"
            cells.setdefault(f"x {row['peer']}", {})[row["subject"]] = text
        elif row["unit"] == SHARE:
            text = f"{row['ratio']:.0%} \\[{low:.0%}, {high:.0%}]"
            cells.setdefault("of the peak", {})[row["subject"]] = text
    for line, values in cells.items():
        table.add_row(line, *(values.get(subject, "") for subject in subjects))
    print()
    Console().print(table)


def _keep(out: Path, rows: list[dict[str, Any]], machine: str, rounds: int) -> None:
    """Writes bench.json and bench.png."""
    from vitrail.drawing.ratios import ratios
    from vitrail.io.files import json_text, write_bytes

    compared = [row for row in rows if row["unit"] == TIMES]
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_bytes(out / "bench.json", json_text({"machine": machine, "rounds": rounds, "rows": rows}).encode())
        write_bytes(out / "bench.png", ratios(compared) if compared else None)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written: {error.strerror or error}") from error
