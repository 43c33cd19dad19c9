"""The small files beside converted weights: config.json without foreign quantisation, the model card, carried files.

Knows names, text and JSON; reads no tensors. Everything in the card is taken from what was converted; what the source
does not say, the card does not say either.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_dspark.checkpoint.convert_plan import Plan
from mlx_dspark.checkpoint.quant_metadata import MODELOPT_FILE, without_quantisation
from mlx_dspark.checkpoint.safetensors import INDEX_NAME
from mlx_dspark.version import __version__

LEGAL = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*")
CARRIED = (
    *LEGAL, "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "*.model", "*.jinja", "chat_template.json", "*processor_config.json",
)  # fmt: skip
REPLACED = ("config.json", "README.md", "conversion.json", MODELOPT_FILE, INDEX_NAME)


@dataclass(frozen=True)
class Origin:
    """Where the source came from: a name without its place on this machine, a hub repository and commit if known."""

    name: str
    repository: str | None
    revision: str | None


def find_origin(given: str, folder: Path) -> Origin:
    """Read the repository and commit from the hub cache's layout, or from a hub download's own notes."""
    folder = folder.resolve()
    cached = re.search(r"models--([^/]+)--([^/]+)/snapshots/([0-9a-f]{7,64})$", folder.as_posix())
    if cached:
        repository = f"{cached[1]}/{cached[2]}"
        return Origin(repository, repository, cached[3])
    note = folder / ".cache" / "huggingface" / "download" / "config.json.metadata"
    revision = None
    if note.is_file():
        first = note.read_text("utf-8", "replace").splitlines()[:1]
        revision = first[0] if first and re.fullmatch(r"[0-9a-f]{40}", first[0]) else None
    is_name = not Path(given).is_dir() and re.fullmatch(r"[\w.-]+/[\w.-]+", given)
    return Origin(given if is_name else folder.name, given if is_name else None, revision)


def carried_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Files to copy beside the weights, and the names of those left out (code among them, always)."""
    kept, left = [], []
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.name in REPLACED or path.suffix == ".safetensors":
            continue
        if any(path.match(pattern) for pattern in CARRIED) and path.suffix != ".py":
            kept.append(path)
        elif not path.name.startswith("."):
            left.append(path.name)
    return kept, left


def result_config(plan: Plan, format: str) -> dict[str, Any]:
    """The source's config without its quantisation; the repacked form gets MLX's entry and names its tensor scale."""
    config: dict[str, Any] = without_quantisation(plan.config)
    if format == "bf16":
        return config
    names = sorted({m.scale.name.rpartition(".")[2] for m in plan.modules})
    scale = names[0] if len(names) == 1 else names
    return {**config, "quantization": {"group_size": 16, "bits": 4, "mode": "nvfp4", "tensor_scale": scale}}


def arithmetic(plan: Plan, format: str) -> str:
    """How values come about, in one line."""
    kinds = {m.reciprocal for m in plan.modules}
    lines = []
    if False in kinds:
        lines.append("bf16(f32(v * f32(s * g))), v the E2M1 code, s the E4M3 block scale, g = weight_scale_2")
    if True in kinds:
        lines.append("bf16(f32(v * f32(s / G))), v the E2M1 code, s the E4M3 block scale, G = weight_global_scale")
    text = "; ".join(lines) + "; round to nearest even, sign of zero kept"
    return text if format == "bf16" else f"none: bytes repacked. Decoding them is {text}"


def write_card(plan: Plan, origin: Origin, folder: Path, format: str) -> str:
    """README.md of the result."""
    config = plan.config
    architecture = ", ".join(map(str, config.get("architectures") or [])) or "not named in config.json"
    form = "bf16" if format == "bf16" else "MLX's NVFP4 form"
    source = (
        f"[{origin.repository}](https://huggingface.co/{origin.repository})"
        if origin.repository
        else f"`{origin.name}`"
    )
    made = f" (quantised by {plan.claims.producer})" if plan.claims.producer else ""
    copied = [i for i in plan.items if i.how == "copied" and i.sources[0] not in {m.scale for m in plan.modules}]
    kinds = ", ".join(f"{n} {d}" for d, n in sorted(Counter(i.spec.dtype for i in copied).items()))
    verb = "decoded to bf16" if format == "bf16" else "repacked without rounding"
    lines = [
        *_front_matter(origin, folder, format),
        f"# {origin.name.rpartition('/')[2]}, {form}",
        "",
        f"A format conversion of {source}{made} by mlx-dspark {__version__}; nothing was trained or calibrated.",
        "",
        "| | |",
        "|---|---|",
        f"| source | {source} |",
        f"| revision | {origin.revision or 'not recorded by the source folder'} |",
        f"| architecture | {architecture} |",
        *_shape_rows(config),
        f"| quantised matrices | {len(plan.modules)} {verb} |",
        f"| other tensors | {len(copied)} passed through byte for byte ({kinds or 'none'}) |",
        f"| parameters | {plan.parameters:,} |",
        f"| parameters without embeddings | {plan.parameters - _embedding(plan):,} |",
        f"| tensor bytes | {plan.nbytes:,} |",
        f"| arithmetic | {arithmetic(plan, format)} |",
        "",
        "`conversion.json` lists every tensor with its source and result.",
        "",
        "## Use",
        "",
        *_usage(config, format),
        "",
        "## Licence and attribution",
        "",
        *_licence(origin, folder),
        "",
    ]
    return "\n".join(lines)


def _embedding(plan: Plan) -> int:
    sizes = [
        i.spec.shape
        for i in plan.items
        if i.spec.name.rpartition(".")[0].endswith("embed_tokens") and i.how != "spread"
    ]
    return sum(rows * width for rows, width in (s for s in sizes if len(s) == 2))


def _shape_rows(config: dict[str, Any]) -> list[str]:
    keys = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "block_size", "target_layer_ids")
    flash = config.get("dflash_config")
    inner = flash if isinstance(flash, dict) else {}
    found = {k: config.get(k, inner.get(k)) for k in keys}
    return [f"| {k} | {v} |" for k, v in found.items() if v is not None]


def _usage(config: dict[str, Any], format: str) -> list[str]:
    drafter = any("DSpark" in str(name) for name in config.get("architectures") or [])
    if drafter:
        reader = "mlx-dspark reads this folder as a drafter:"
        return [reader, "", "```", "mlx-dspark generate --model TARGET --drafter THIS_FOLDER --prompt 'Hello'", "```"]
    if format == "bf16":
        return ["Plain bf16 safetensors: any library that knows the architecture reads them."]
    return [
        "Weights are uint32 and block scales uint8, as `mx.dequantize(mode='nvfp4')` takes them; multiply by the "
        "tensor scale stored beside them."
    ]


def _front_matter(origin: Origin, folder: Path, format: str) -> list[str]:
    kept = _front_values(folder)
    base = [f"base_model: {origin.repository}"] if origin.repository else []
    tags = ["tags:", "- mlx", "- bf16" if format == "bf16" else "- nvfp4"]
    return ["---", "library_name: mlx", *kept, *base, *tags, "---", ""]


def _front_values(folder: Path) -> list[str]:
    """The licence lines of the source card's front matter, as they are."""
    card = folder / "README.md"
    text = card.read_text("utf-8", "replace") if card.is_file() else ""
    front = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    return [line for line in (front[1].splitlines() if front else []) if re.match(r"license(_name|_link)?:\s*\S", line)]


def _licence(origin: Origin, folder: Path) -> list[str]:
    files = sorted(p for pattern in LEGAL for p in folder.glob(pattern) if p.is_file())
    name = next((v.partition(":")[2].strip() for v in reversed(_front_values(folder)) if "_link" not in v), None)
    lines = [f"The source's licence{f' ({name})' if name else ''} applies to the result."]
    if files:
        lines.append(f"Carried over unchanged: {', '.join(f'`{p.name}`' for p in files)}.")
    else:
        lines.append("The source folder had no licence file; see the source before using or sharing the result.")
    notices = [
        line.strip()
        for path in files
        for line in path.read_text("utf-8", "replace").splitlines()
        if re.search(r"©|copyright (\(c\)|\d{4})", line, re.IGNORECASE)
    ]
    lines += [f"> {line}" for line in dict.fromkeys(notices[:5])]
    if origin.repository:
        lines.append(f"Original model: {origin.repository}, by {origin.repository.partition('/')[0]}.")
    return lines
