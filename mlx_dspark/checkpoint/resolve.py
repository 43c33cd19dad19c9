"""A model's name -> a local folder: the embedded pair, a path, a cached or LM Studio copy, or a hub download.

Knows folders and the hub's client (imported only when a name needs it); must not know what is in a checkpoint beyond
which files it needs. Downloads never fetch code. Everything on disk is tried before the network.
"""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

from mlx_dspark.checkpoint.safetensors import INDEX_NAME
from mlx_dspark.errors import ModelNotFound

EMBEDDED = {"demo": "target-4bit", "demo-drafter": "drafter"}
NEEDED = ["*.json", "*.jinja", "model*.safetensors"]  # what makes a cached snapshot complete, whoever fetched it
PATTERNS = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "LICENSE*", "README*"]
REPOSITORY = re.compile(r"(?!.*(?:--|\.\.))\w(?:[\w.-]*\w)?/\w(?:[\w.-]*\w)?", re.ASCII)
LM_STUDIO = ("~/.lmstudio/models", "~/.cache/lm-studio/models")


def resolve(name: str, *, what: str = "model") -> Path:
    """The folder of `name`; `what` is the option it came from, for messages.

    In this order: the embedded pair's names (`./demo` is a folder of that name), a folder (~ expanded; ORG/NAME may
    be one), a complete snapshot in the hub's cache (HF_HOME, HF_HUB_CACHE), LM Studio's folders, a download.
    Raises ModelNotFound with the next step if there is none and none can be fetched.
    """
    if name in EMBEDDED:
        return _embedded(name)
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return Path(path)
    if os.path.isfile(path):
        raise ModelNotFound(f"--{what} {name} is a file; give the folder that holds config.json and the weights")
    if name.startswith((".", "~")) or os.path.isabs(path) or name.count(os.sep) > 1:
        raise ModelNotFound(f"--{what} {name} is no folder here; check the path")
    if not _is_repository(name):
        raise ModelNotFound(
            f"--{what} {name!r} is no folder here and no hub repository (ORG/NAME); check the spelling or give a folder"
        )
    folder, lacks = _cached(name)
    return folder or _lm_studio(name) or _download(name, what, lacks)


def find(name: str) -> Path | None:
    """Where `resolve` would find a complete checkpoint without any network call; None if it would have to download."""
    if name in EMBEDDED:
        return _embedded(name)
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        return path if is_complete(path) else None
    return (_cached(name)[0] or _lm_studio(name)) if _is_repository(name) else None


def _embedded(name: str) -> Path:
    folder = Path(__file__).parent.parent / "demo" / EMBEDDED[name]
    lacks = missing(folder)
    if lacks:
        raise ModelNotFound(f"the embedded pair is damaged, {lacks} is not in {folder}; install the package again")
    return folder


def places() -> list[tuple[str, str]]:
    """Where `resolve` looks, in order: (kind, place)."""
    from huggingface_hub import constants

    hub = "not asked: HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else constants.ENDPOINT
    return [
        ("embedded", ", ".join(EMBEDDED)),
        ("folder", "any path that is a folder"),
        ("hub cache", constants.HF_HUB_CACHE),
        *(("LM Studio", os.path.expanduser(root)) for root in LM_STUDIO),
        ("hub", hub),
    ]


def missing(folder: Path) -> str | None:
    """The first file a checkpoint folder lacks, of config.json and the weights its index names; None if complete."""
    if not (folder / "config.json").is_file():
        return "config.json"
    index = folder / INDEX_NAME
    if not index.is_file():
        return None if any(folder.glob("model*.safetensors")) else "model.safetensors"
    try:
        shards = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        return next((str(shard) for shard in shards if not (folder / shard).is_file()), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"a readable {INDEX_NAME}"


def is_complete(folder: Path) -> bool:
    """Whether a folder has its config and all the weight files it names."""
    return missing(folder) is None


def _is_repository(name: str) -> bool:
    """Whether the hub allows ORG/NAME as a repository's name (96 characters each at most)."""
    return bool(REPOSITORY.fullmatch(name)) and all(len(p) <= 96 for p in name.split("/")) and name[-4:] != ".git"


def _cached(name: str) -> tuple[Path | None, str | None]:
    """A complete snapshot in the hub's cache, without any network call; or what an incomplete one lacks."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import IncompleteSnapshotError

    try:
        folder = Path(snapshot_download(name, allow_patterns=NEEDED, local_files_only=True))
    except IncompleteSnapshotError as error:
        return None, missing(Path(error.snapshot_path)) or "a file"
    except (OSError, ValueError):  # LocalEntryNotFoundError is an OSError, like an unreadable cache
        return None, None
    lacks = missing(folder)
    return (None if lacks else folder), lacks


def _lm_studio(name: str) -> Path | None:
    folders = (Path(os.path.expanduser(root)) / name for root in LM_STUDIO)
    return next((folder for folder in folders if is_complete(folder)), None)


def _download(name: str, what: str, lacks: str | None) -> Path:
    """Fetch a snapshot; huggingface_hub shows the progress bar.

    A dropped connection continues mid-file. A new process keeps the finished files but begins unfinished ones anew:
    since 1.x the client gives each attempt its own temporary file (its _download_to_tmp_and_move).
    """
    from huggingface_hub import constants, snapshot_download

    found = f"is incomplete on this machine ({lacks} is missing)" if lacks else "is not on this machine"
    if constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        raise ModelNotFound(f"--{what} {name} {found} and HF_HUB_OFFLINE is set; unset it to download the rest")
    try:
        folder = Path(snapshot_download(name, allow_patterns=PATTERNS))
    except Exception as error:  # the hub's, its transports' and the file system's errors share no base
        raise ModelNotFound(f"--{what} {name} {_reason(error, found)}") from None
    lacks = missing(folder)
    if lacks:
        raise ModelNotFound(
            f"--{what} {name} lacks {lacks} even after the download: its repository is no safetensors model or the hub "
            "did not answer; choose an MLX conversion or run again online"
        )
    return folder


def _reason(error: Exception, found: str) -> str:
    """What a failed download means and what to do, as the rest of a sentence about the model."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    text = " ".join(str(error).split()) or type(error).__name__
    short = text if len(text) <= 160 else text[:157] + "..."
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or "No space left on device" in text:
        return f"does not fit on the disk of {constants.HF_HUB_CACHE}; free space or set HF_HOME, then run again"
    if isinstance(error, PermissionError):
        return f"cannot be written to {constants.HF_HUB_CACHE} ({short}); make it writable or set HF_HOME"
    if isinstance(error, GatedRepoError):
        return "is gated on the hub; accept its terms there, run 'hf auth login' and try again"
    if isinstance(error, RepositoryNotFoundError):
        return "is neither a folder here nor a hub repository you can read; check the spelling or run 'hf auth login'"
    if isinstance(error, LocalEntryNotFoundError):
        return f"{found} and the hub at {constants.ENDPOINT} does not answer; check the connection or give a folder"
    return f"could not be downloaded ({short}); check the connection and run again, finished files are kept"
