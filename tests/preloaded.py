"""What most commands import, for the process that `tests/warm.py` forks the others from."""

import gc
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import matplotlib.backends.backend_agg
    import matplotlib.figure
    import onnxscript
    import pyarrow.parquet
    import rich.progress
    import torch._dynamo  # optimizers import it when they are made
    import torch.onnx
    import tyro

    import vitrail.inspect
    import vitrail.transfer
    from vitrail.checkpoints.peers.libraries import import_peer

    for peer in ("torchvision", "timm", "transformers"):
        import_peer(peer)

__all__ = ["matplotlib", "onnxscript", "pyarrow", "rich", "torch", "tyro", "vitrail"]

gc.freeze()  # or every process that is forked from here walks over all of it, page by page, to find garbage
