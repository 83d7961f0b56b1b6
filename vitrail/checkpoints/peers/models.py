"""Building the same model in other libraries (peers), to measure their speed beside ours: of the same size, and with
the same weights if the peer's architecture can hold them. All peers are optional; a missing one raises PeerMissing."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.checkpoints import huggingface, timm, torchvision
from vitrail.checkpoints.peers.libraries import PeerMissing, import_peer, torchvision_model
from vitrail.errors import UserError, first_line
from vitrail.models.vit import ViT

# The names of all peers.
PEERS = ("timm", "transformers", "torchvision", "vit-pytorch", "onnxruntime", "openvino")


@dataclass(frozen=True)
class PeerModel:
    """A model of the same size in a peer's code."""

    run: Callable[[Tensor], Tensor]
    """Computes logits (batch, classes) of images (batch, channels, rows, columns)."""
    same: bool = True
    """True if it has the same weights and computes the same logits."""


def peer_model(peer: str, model: ViT, folder: Path) -> PeerModel:
    """Builds the model in a peer's code.

    Args:
        peer: One of `PEERS`. The engines onnxruntime and openvino run timm's model, exported to ONNX as PyTorch's
            manual says.
        model: Our model.
        folder: Where the exported file is written, and found by the second engine.

    Raises:
        PeerMissing: If the peer is not installed or cannot express the model.
        UserError: If there is no peer of that name.
    """
    make: dict[str, Callable[[ViT, Path], PeerModel]] = {
        "timm": lambda model, _: PeerModel(_timm(model)),
        "transformers": lambda model, _: _transformers(model),
        "torchvision": lambda model, _: _torchvision(model),
        "vit-pytorch": lambda model, _: _vit_pytorch(model),
        "onnxruntime": _onnxruntime,
        "openvino": _openvino,
    }
    if peer not in make:
        raise UserError(f"there is no peer {peer!r}; there are {', '.join(PEERS)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peers' own warnings, while they are imported and built
        try:
            return make[peer](model, folder)
        except PeerMissing:
            raise
        except Exception as error:  # a peer that fails is a finding to report, not a reason to stop
            raise PeerMissing(f"{peer} cannot run it ({first_line(error)})") from error


def _timm(model: ViT) -> nn.Module:
    module = import_peer("timm")
    architecture, arguments = timm.describe_model(model.config)
    theirs = module.create_model(architecture, num_classes=model.config.num_classes, **arguments)
    theirs.load_state_dict(model.state_dict())
    return theirs.eval()


def _transformers(model: ViT) -> PeerModel:
    module, config, state = import_peer("transformers"), model.config, model.state_dict()
    settings = module.ViTConfig(**huggingface.config_json(config, model.card, {}))
    theirs = module.ViTForImageClassification(settings)
    rules = huggingface.rules(config, "vit.", huggingface.MEMORY)
    parts = [zip(rule.foreign, rule.write(state[rule.native]), strict=True) for rule in rules]
    theirs.load_state_dict({name: tensor for pairs in parts for name, tensor in pairs})
    theirs.eval()
    return PeerModel(lambda images: theirs(images).logits)


def _torchvision(model: ViT) -> PeerModel:
    theirs = torchvision_model(model.config)
    theirs.load_state_dict(torchvision.to_torchvision(model.state_dict(), model.config))
    return PeerModel(theirs.eval())


def _vit_pytorch(model: ViT) -> PeerModel:
    """Builds vit-pytorch's model of the same size. Its weights are random, since its architecture differs: norms around
    the patch projection, no biases in attention."""
    config = model.config
    theirs = import_peer("vit_pytorch").ViT(
        image_size=config.rows_columns,
        patch_size=config.patch_size,
        num_classes=config.num_classes,
        dim=config.width,
        depth=config.depth,
        heads=config.num_heads,
        mlp_dim=config.mlp_dim,
        dim_head=config.width // config.num_heads,
        channels=config.channels,
    )
    return PeerModel(theirs.eval(), same=False)


def _onnxruntime(model: ViT, folder: Path) -> PeerModel:
    runtime = import_peer("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(str(_exported(model, folder)), options, providers=["CPUExecutionProvider"])
    return PeerModel(lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0]))


def _openvino(model: ViT, folder: Path) -> PeerModel:
    core = import_peer("openvino").Core()
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    compiled: Any = core.compile_model(core.read_model(str(_exported(model, folder))), "CPU", settings)
    return PeerModel(lambda images: torch.from_numpy(compiled(images.numpy())[0]))


def _exported(model: ViT, folder: Path) -> Path:
    """Returns timm's model as an ONNX file in `folder`, exported at the first call."""
    path = folder / "timm.onnx"
    if path.exists():
        return path
    for name in ("onnx", "onnxscript"):
        import_peer(name)
    images = torch.zeros(2, model.config.channels, *model.config.rows_columns)
    batch = {"x": {0: torch.export.Dim("batch", min=1, max=1 << 20)}}
    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["logits"]}
    with torch.no_grad():
        torch.onnx.export(_timm(model), (images,), path, dynamo=True, dynamic_shapes=batch, verbose=False, **names)
    return path
