"""A model's name -> a local folder: the embedded pair, a path, a cached or LM Studio copy, or a hub download.

Downloads never fetch code. Everything on disk is tried before the network.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from mlx_dspark.checkpoint.safetensors import INDEX_NAME
from mlx_dspark.errors import ModelNotFound

EMBEDDED = {"demo": "target-4bit", "demo-drafter": "drafter"}
PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "LICENSE*", "README*"]
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class KnownPair:
    """A target and the drafter made for it."""

    title: str
    target: str
    drafter: str


KNOWN_PAIRS = (
    KnownPair("The embedded pair", "demo", "demo-drafter"),
    KnownPair(
        "NVIDIA Nemotron 3.5 Lightning 30B-A3B, 4-bit",
        "mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-4bit",
        "mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-DSpark-bf16",
    ),
)


def drafter_for(model: str) -> str | None:
    """The drafter known for a target, recognised by its name or by a folder of its name."""
    last = Path(model).name
    for pair in KNOWN_PAIRS:
        if model == pair.target or ("/" in pair.target and last == pair.target.split("/")[1]):
            return pair.drafter
    return None


def resolve(name: str, *, what: str = "model") -> Path:
    """The folder of `name`. Raises ModelNotFound with the next step if there is none and none can be fetched."""
    if name in EMBEDDED and not Path(name).is_dir():
        return _embedded(name)
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise ModelNotFound(f"--{what} {name} is a file; give the folder that holds config.json and the weights")
    if not REPOSITORY.fullmatch(name):
        raise ModelNotFound(
            f"--{what} {name} is no folder here and no hub repository (ORG/NAME); check the spelling or give a folder"
        )
    return _cached(name) or _lm_studio(name) or _download(name, what)


def _embedded(name: str) -> Path:
    folder = Path(__file__).parent.parent / "demo" / EMBEDDED[name]
    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"the embedded pair is missing at {folder}; install the package again")
    return folder


def is_complete(folder: Path) -> bool:
    """Whether a folder has its config and all the weight files it names."""
    if not (folder / "config.json").is_file():
        return False
    index = folder / INDEX_NAME
    if not index.is_file():
        return any(folder.glob("model*.safetensors"))
    try:
        shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError):
        return False
    return all((folder / shard).is_file() for shard in shards)


def _cached(name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=PATTERNS, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if is_complete(folder) else None


def _lm_studio(name: str) -> Path | None:
    for root in ("~/.lmstudio/models", "~/.cache/lm-studio/models"):
        folder = Path(root).expanduser() / name
        if is_complete(folder):
            return folder
    return None


def _download(name: str, what: str) -> Path:
    """Fetch or resume a snapshot; huggingface_hub shows the progress bar and continues partial files."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    if constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        raise ModelNotFound(
            f"--{what} {name} is not complete on this machine and HF_HUB_OFFLINE is set; unset it to download"
        )
    try:
        folder = Path(snapshot_download(name, allow_patterns=PATTERNS))
    except GatedRepoError:
        raise ModelNotFound(f"--{what} {name} is gated; accept its terms on the hub and run 'hf auth login'") from None
    except RepositoryNotFoundError:
        raise ModelNotFound(f"--{what} {name} is neither a folder here nor a hub repository you can read") from None
    except LocalEntryNotFoundError:
        raise ModelNotFound(
            f"--{what} {name} is not on this machine and the hub cannot be reached; go online"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelNotFound(f"--{what} {name} could not be downloaded ({reason}); run again to resume") from None
    if not is_complete(folder):
        raise ModelNotFound(f"--{what} {name} has no config.json with safetensors weights; choose an MLX conversion")
    return folder
