"""`vitrail serve MODEL...`: serves an HTTP API and a page until Ctrl-C or SIGTERM."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli import emit_json, note
from vitrail.cli.model_flags import Flags, NamedWeights
from vitrail.cli.predict import EngineName

_PACKAGES = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")
"""The packages that serving needs besides the core's."""


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
    formats: str = "jpeg,png,webp,gif",
    decode_seconds: float = 10.0,
    decode_mb: float = 1024.0,
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
    """Serves models over HTTP: /predict, /embed, /attention, the Open Inference Protocol, metrics, and a page at /.

    The first model answers requests that name none. The log is JSON on stderr, a line for each request.

    Args:
        models: The models: bundles, run folders, weights files, .onnx or .xml files, hf:owner/name, names such as Ti/16
            (vitrail models --weights lists them); NAME=MODEL gives a model a name.
        host: The address to listen on. Addresses that other machines can reach need --api-key-file, or --insecure.
        port: The port to listen on; 0 takes a free one.
        api_key_file: A file with one key a line; each request must then carry one of them.
        insecure: Let other machines connect without a key.
        max_batch: The largest number of images computed in one batch.
        max_wait_ms: How long the first image of a batch waits for others, in milliseconds.
        max_queue: The largest number of images that may wait; more are refused with 503.
        max_images: The largest number of images in one request.
        max_body_mb: The size of the largest request, in megabytes.
        max_megapixels: The size of the largest image, in megapixels; larger ones are refused by their header.
        formats: The formats of image files that are read; others are refused with 415. More can be named: bmp, tiff,
            avif, jpeg2000, ppm, tga, ico, pcx, qoi, sgi, and heif with pillow-heif.
        decode_seconds: The longest time that decoding one image may take, in seconds.
        decode_mb: The most memory that decoding one image may take, in MB. Linux only.
        receive_seconds: The seconds in which a request's headers, and then its body, must arrive.
        deadline_seconds: The seconds in which a request must be answered.
        drain_seconds: The seconds after SIGTERM in which requests that were accepted may finish.
        engine: The program that runs the models; torch by default, because the others do not show attention.
        workers: The number of batches computed at once, which share the processors; by default one for each processor,
            up to 8.
        device: Where torch computes: auto, cpu, cuda or mps.
        log_level: The least severe messages that are logged.
        json: Print one JSON document with the address and the models once the server listens.
    """
    from vitrail.errors import UserError
    from vitrail.serving import logs
    from vitrail.serving.address import open_listener
    from vitrail.serving.keys import read_keys
    from vitrail.serving.limits import Limits, read_image_formats
    from vitrail.serving.memory import configure_malloc

    configure_malloc()
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
        formats=read_image_formats(formats),
        decode_seconds=decode_seconds,
        decode_mb=decode_mb,
        receive_seconds=receive_seconds,
        deadline_seconds=deadline_seconds,
        drain_seconds=drain_seconds,
    )
    keys = None if api_key_file is None else read_keys(api_key_file)
    # The address is checked before models are loaded, which may take long.
    open_listener(host, port, open_to_all=insecure or keys is not None).close()
    from vitrail.inference.engine_selection import Loading
    from vitrail.serving.models import open_engines
    from vitrail.serving.server import serve

    loading = Loading(**weights.options(), device=device)
    engines = open_engines(models, engine, workers=workers, loading=loading, say=note)

    def started(address: str) -> None:
        """Prints the address once the server listens."""
        if json:
            emit_json({"url": address, "models": list(engines)})
            sys.stdout.flush()
        else:
            note(f"vitrail serves {', '.join(engines)} at {address}  (Ctrl-C ends it)")

    with logs.redirect_stderr() as writer:
        logs.configure(log_level, writer)
        serve(engines, host=host, port=port, limits=limits, keys=keys, insecure=insecure, started=started)
