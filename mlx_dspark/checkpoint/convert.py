"""The converter: plan, stream, prove, publish. NVIDIA's NVFP4 checkpoints become bf16, or MLX's NVFP4 form.

Ties the parts together and owns the report; numpy only, neither mlx nor torch. All refusals about the source come
before the first output byte, and the destination changes only when the result is complete.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlx_dspark.checkpoint import model_card
from mlx_dspark.checkpoint.convert_options import FORMATS, ConvertOptions
from mlx_dspark.checkpoint.convert_plan import Item, Plan, make_plan
from mlx_dspark.checkpoint.convert_source import Source
from mlx_dspark.checkpoint.convert_verify import verify_folder
from mlx_dspark.checkpoint.convert_write import Digests, write_tensors
from mlx_dspark.checkpoint.safetensors import TensorInfo
from mlx_dspark.checkpoint.staging import Staging, check_destination, check_space, free_bytes, stoppable
from mlx_dspark.errors import ConversionError, ModelNotFound
from mlx_dspark.version import __version__

WEIGHTS, REPORT = "model.safetensors", "conversion.json"
SMALL_FILES = 1 << 20  # room for the files beside the weights, in the check of free space


@dataclass(frozen=True)
class Report:
    """What a conversion did, would do (dry run) or proved. `written` and `verified` say which."""

    source: str
    revision: str | None
    destination: Path
    format: str
    modules: int
    copied: int
    parameters: int
    bytes_in: int
    bytes_out: int
    warnings: tuple[str, ...]
    dropped: tuple[str, ...]
    left_out: tuple[str, ...]
    written: bool
    verified: bool
    items: tuple[Item, ...]


def convert(options: ConvertOptions, progress: Callable[[int, int], None] | None = None) -> Report:
    """Run one conversion. `progress` gets (bytes done, bytes in all). Raises DsparkError; then nothing was written."""
    folder = find_source(options.src)
    dst = Path(options.dst).expanduser()
    if options.verify and not options.force and (dst / WEIGHTS).is_file():
        return _verify_existing(options, folder, dst, progress)
    with Source(folder) as source:
        plan = make_plan(source, options.format)
        check_destination(dst, folder, source.paths, force=options.force)
        check_space(dst, plan.nbytes + SMALL_FILES)
        if not options.dry_run:
            _write(options, plan, source, dst, progress)
        return _report(options, plan, folder, dst)


def find_source(name: str) -> Path:
    """A local folder as it is; anything else through the hub's cache or a download."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise ConversionError(f"{name} is a file; give the folder that holds config.json and the weights")
    from mlx_dspark.checkpoint.resolve import resolve

    try:
        return resolve(name, what="drafter")
    except ModelNotFound as error:
        raise ModelNotFound(str(error).replace("--drafter ", "source ", 1)) from None


def _write(
    options: ConvertOptions, plan: Plan, source: Source, dst: Path, progress: Callable[[int, int], None] | None
) -> None:
    try:
        with stoppable(), Staging(dst) as staging:
            part = staging.folder / "weights.part"
            metadata = {**plan.metadata, "format": "mlx"}
            digests = write_tensors(part, plan, source, metadata, hashes=options.hashes, progress=progress)
            _write_small_files(options, plan, source.folder, staging.folder, digests)
            source.check_unchanged()
            part.rename(staging.folder / WEIGHTS)
            if options.verify:
                verify_folder(staging.folder, plan, source, progress)
            staging.publish()
    except OSError as error:
        where = free_bytes(dst)
        raise ConversionError(
            f"{dst} cannot be written ({error.strerror or error}): it needs {plan.nbytes + SMALL_FILES} bytes and its "
            f"disk has {where} free; nothing was left behind, so make room or choose another destination and run again"
        ) from None


def _write_small_files(
    options: ConvertOptions, plan: Plan, source: Path, folder: Path, digests: dict[str, Digests]
) -> None:
    origin = model_card.find_origin(options.src, source)
    kept, left = model_card.carried_files(source)
    for path in kept:
        shutil.copyfile(path, folder / path.name)
    config = model_card.result_config(plan, options.format)
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")
    (folder / "README.md").write_text(model_card.write_card(plan, origin, source, options.format), "utf-8")
    report = {
        "tool": {"name": "mlx-dspark", "version": __version__},
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "source": {
            "name": origin.name,
            "repository": origin.repository,
            "revision": origin.revision,
            "quantisation": plan.claims.algo,
            "producer": plan.claims.producer,
            "files": sorted({info.file.name for item in plan.items for info in item.sources}),
        },
        "format": options.format,
        "arithmetic": model_card.arithmetic(plan, options.format),
        "parameters": plan.parameters,
        "matrices": len(plan.modules),
        "bytes": plan.nbytes,
        "warnings": list(plan.warnings),
        "dropped": [_info(info) for info in plan.dropped],
        "carried": [path.name for path in kept],
        "left_out": left,
        "tensors": [_entry(item, digests[item.spec.name]) for item in plan.items],
    }
    (folder / REPORT).write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _info(info: TensorInfo, digest: str | None = None) -> dict[str, Any]:
    found = {"name": info.name, "dtype": info.dtype, "shape": list(info.shape), "file": info.file.name}
    return {**found, "sha256": digest} if digest else found


def _entry(item: Item, digests: Digests) -> dict[str, Any]:
    result: dict[str, Any] = {"dtype": item.spec.dtype, "shape": list(item.spec.shape)}
    if digests.result:
        result["sha256"] = digests.result
    entry: dict[str, Any] = {"name": item.spec.name, "how": item.how}
    if item.how == "decoded":
        entry |= {"group_size": item.group, "reciprocal": item.reciprocal, "tensor_scale": item.tensor_scale}
    return {**entry, "source": [_info(i, digests.sources.get(i.name)) for i in item.sources], "result": result}


def _verify_existing(
    options: ConvertOptions, folder: Path, dst: Path, progress: Callable[[int, int], None] | None
) -> Report:
    """Prove what is there, in the form its own report names."""
    try:
        said = json.loads((dst / REPORT).read_text("utf-8"))["format"]
    except (OSError, ValueError, KeyError, TypeError):
        said = options.format
    if said not in FORMATS:
        raise ConversionError(
            f"{dst / REPORT} names the format {said!r}, which this version does not write; convert again"
        )
    options = ConvertOptions(options.src, options.dst, said, verify=True)
    with Source(folder) as source:
        plan = make_plan(source, said)
        verify_folder(dst, plan, source, progress)
        source.check_unchanged()
        return _report(options, plan, folder, dst, written=False)


def _report(options: ConvertOptions, plan: Plan, folder: Path, dst: Path, *, written: bool = True) -> Report:
    origin = model_card.find_origin(options.src, folder)
    scales = {m.scale for m in plan.modules}
    return Report(
        source=origin.name,
        revision=origin.revision,
        destination=dst,
        format=options.format,
        modules=len(plan.modules),
        copied=sum(item.how == "copied" and item.sources[0] not in scales for item in plan.items),
        parameters=plan.parameters,
        bytes_in=sum(info.nbytes for info in {i for item in plan.items for i in item.sources} | set(plan.dropped)),
        bytes_out=plan.nbytes,
        warnings=plan.warnings,
        dropped=tuple(info.name for info in plan.dropped),
        left_out=tuple(model_card.carried_files(folder)[1]),
        written=written and not options.dry_run,
        verified=options.verify,
        items=plan.items,
    )
