"""`hf:owner/name`: a model of the Hugging Face hub as a local folder."""

import re
from pathlib import Path

from vitrail.errors import UserError

FILES = ["config.json", "preprocessor_config.json", "SHA256SUMS", "*.safetensors", "*.safetensors.index.json"]


def is_hub(source: str) -> bool:
    return source.startswith("hf:")


def fetch(source: str) -> Path:
    """Download what a model needs (never code, never pickle where safetensors exist) and return the folder."""
    name, _, revision = source.removeprefix("hf:").partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"{source!r} is not a hub name; it looks like hf:owner/name or hf:owner/name@revision")
    from huggingface_hub import HfApi, snapshot_download

    try:
        folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=FILES))
        if not list(folder.glob("*.safetensors")) and not _offline():
            listed = HfApi().list_repo_files(name, revision=revision or None)
            if "pytorch_model.bin" in listed:
                folder = Path(snapshot_download(name, revision=revision or None, allow_patterns=[*FILES, "*.bin"]))
    except Exception as error:  # the hub's client raises many kinds; the user needs the reason, not the kind
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{source}: cannot be had from the hub: {reason}") from error
    return folder


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)
