"""`mlx-dspark models`: the known pairs, what of them is here, and an index of pages."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_dspark.cli.flags import collect
from mlx_dspark.options import check_options, option

if TYPE_CHECKING:
    from mlx_dspark.checkpoint.registry import KnownPair

INDEX_NAME = "index.html"


@dataclass(frozen=True)
class ModelsOptions:
    """How to list, and whether to make an index."""

    json: bool = option(False, "Print one JSON object.", flag="--json")
    index: str | None = option(
        None, "Make index.html in this folder: links to the pages that benchmark --html wrote there.", metavar="FOLDER"
    )

    def __post_init__(self) -> None:
        check_options(self)


def run(values: dict[str, Any]) -> None:
    """Print the list, or make the index and say where it is."""
    options: ModelsOptions = collect(ModelsOptions, values)
    if options.index is not None:
        from mlx_dspark.benchmark.page.index import write_index

        path, count = write_index(Path(options.index))
        print(f"wrote {path}: {count} {'page' if count == 1 else 'pages'}", file=sys.stderr)
        if options.json:
            print(json.dumps({"index": str(path), "pages": count}))
        return
    from mlx_dspark.checkpoint.registry import KNOWN_PAIRS

    if options.json:
        print(json.dumps({"pairs": [_record(pair) for pair in KNOWN_PAIRS]}, ensure_ascii=False, indent=1))
    else:
        print("\n\n".join(_paragraph(pair) for pair in KNOWN_PAIRS))


def _record(pair: KnownPair) -> dict[str, Any]:
    return {**asdict(pair), "on_disk": {name: _on_disk(name) for name in (pair.target, pair.drafter)}}


def _on_disk(name: str) -> dict[str, Any] | None:
    """Folder and bytes of a complete checkpoint that is here; None if there is none."""
    from mlx_dspark.checkpoint.resolve import find

    folder = find(name)
    if folder is None:
        return None
    return {"folder": str(folder), "bytes": sum(f.stat().st_size for f in folder.iterdir() if f.is_file())}


def _paragraph(pair: KnownPair) -> str:
    lines = [pair.title, f"  {pair.summary}", f"  maker     {pair.maker}; licence: {pair.licence}"]
    for what, name in (("target", pair.target), ("drafter", pair.drafter)):
        found = _on_disk(name)
        state = f"here, {_size(found['bytes'])} in {found['folder']}" if found else "not here; fetched at first use"
        lines += [f"  {what:8}  {name}", f"            {state}"]
    given = "" if pair.name == "demo" else f" --model {pair.target}"
    lines += [
        f"  lookup    {'on' if pair.lookup_drafts else 'off'} by default",
        f"  notes     {pair.notes}",
        *(f"  others    {figure.text} ({figure.where})" for figure in pair.figures),
        f"  run       mlx-dspark generate{given} --prompt 'Hello'",
        f"  measure   mlx-dspark benchmark{given} --html page.html",
    ]
    return "\n".join(lines)


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
