"""Measures what a reader of ours costs beside the library's way: processor seconds and memory of a whole program.

    python bench/readers.py [--model B/16] [--rounds 7]

Processor time is told, not the clock's, so that other work on the machine matters little.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

READERS = {
    "vitrail's reader of ONNX metadata": "from pathlib import Path; from vitrail.inference.engines.facts import "
    "read_onnx_facts; read_onnx_facts(Path('model.onnx'))",
    "onnx.load": "import onnx; onnx.load('model.onnx').metadata_props",
    "onnxruntime.InferenceSession": "import onnxruntime as o; o.InferenceSession('model.onnx').get_modelmeta()",
    "vitrail.cli.bar": "import vitrail.cli.bar",
    "vitrail.cli.bar and rich.progress": "import vitrail.cli.bar, rich.progress",
}
COST = "import time, resource as r; print(time.process_time(), r.getrusage(r.RUSAGE_SELF).ru_maxrss >> 10)"


def cost(program: str, folder: Path) -> tuple[float, int]:
    command = [sys.executable, "-c", f"{program}\n{COST}"]
    said = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.split()
    return float(said[-2]), int(said[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="B/16")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export = f"import vitrail; vitrail.export(vitrail.create({options.model!r}), 'model.onnx')"
        subprocess.run([sys.executable, "-c", export], cwd=folder, check=True, capture_output=True)
        print(f"{options.model}, {(folder / 'model.onnx').stat().st_size >> 20} MB; {options.rounds} rounds")
        for reader, program in READERS.items():
            seconds, memory = zip(*(cost(program, folder) for _ in range(options.rounds)), strict=True)
            spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
            print(f"{reader:36} {statistics.median(seconds):.2f} s ({spread})  {statistics.median(memory):.0f} MB")


if __name__ == "__main__":
    main()
