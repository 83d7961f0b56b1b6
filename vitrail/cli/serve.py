"""`vitrail serve MODEL...`: an HTTP API and a page, until Ctrl-C or SIGTERM."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli import emit_json, note
from vitrail.cli.predict import EngineName
from vitrail.cli.weights import Flags, NamedWeights

_PACKAGES = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")


def command(
    models: Annotated[tuple[str, ...], tyro.conf.Positional],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_file: Path | None = None,
    insecure: bool = False,
    max_batch: int = 16,
    max_wait_ms: float = 2.0,
    max_queue: int = 64,
    max_images: int = 64,
    max_body_mb: float = 32.0,
    max_megapixels: float = 50.0,
    receive_seconds: float = 20.0,
    deadline_seconds: float = 30.0,
    drain_seconds: float = 10.0,
    engine: EngineName | None = None,
    workers: int | None = None,
    device: str = "auto",
    log_level: Literal["debug", "info", "warning", "error"] = "info",
    weights: Annotated[NamedWeights, Flags] = NamedWeights(),
    json: bool = False,
) -> None:
    """Serve models over HTTP: /predict, /embed, /attention, the Open Inference Protocol, metrics, and a page at /.

    The first model answers where none is named. The log is JSON on stderr, a line a request.

    Args:
        models: Bundles, run folders, weights files, .onnx or .xml files, hf:owner/name, names such as Ti/16 (vitrail
            models --weights); NAME=MODEL gives a name.
        host: The address to listen at. Beyond this machine only with --api-key-file, or --insecure.
        port: 0 takes a free one.
        api_key_file: A file with a key a line; requests must then carry one.
        insecure: Listen beyond this machine without a key.
        max_batch: Images run at once.
        max_wait_ms: How long the first image of a batch waits for others.
        max_queue: Images that may wait; more are refused with 503.
        max_images: Images in one request.
        max_body_mb: The largest request.
        max_megapixels: The largest image, by its header.
        receive_seconds: For a request to arrive: the headers, and then the body.
        deadline_seconds: For an answer.
        drain_seconds: After SIGTERM, for what was accepted.
        engine: What runs the models; torch unless told otherwise, since others do not show attention.
        workers: Batches computed at once; they share the processors. By default one a processor, up to 8.
        device: For torch: auto, cpu, cuda, mps.
        log_level: What the log holds.
        json: Print one JSON document with the address and the models, once the server listens.
    """
    from vitrail.errors import UserError
    from vitrail.serving import logs
    from vitrail.serving.address import bind
    from vitrail.serving.keys import read_keys
    from vitrail.serving.limits import Limits
    from vitrail.serving.memory import share_memory

    share_memory()
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise UserError(f'the package {package} is not installed: pip install "vitrail[serve]"') from error
    limits = Limits(
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        max_queue=max_queue,
        max_images=max_images,
        max_body_mb=max_body_mb,
        max_megapixels=max_megapixels,
        receive_seconds=receive_seconds,
        deadline_seconds=deadline_seconds,
        drain_seconds=drain_seconds,
    )
    keys = None if api_key_file is None else read_keys(api_key_file)
    # What is wrong with the address is said before models are loaded, which may take long.
    bind(host, port, open_to_all=insecure or keys is not None).close()
    from vitrail.inference.choose import Loading
    from vitrail.serving.models import open_engines
    from vitrail.serving.server import serve

    loading = Loading(**weights.options(), device=device)
    engines = open_engines(models, engine, workers=workers, loading=loading, say=note)
    logs.adopt_stderr()
    logs.configure(log_level)

    def started(address: str) -> None:
        if json:
            emit_json({"url": address, "models": list(engines)})
            sys.stdout.flush()
        else:
            note(f"vitrail serves {', '.join(engines)} at {address}  (Ctrl-C ends it)")

    serve(engines, host=host, port=port, limits=limits, keys=keys, insecure=insecure, started=started)
