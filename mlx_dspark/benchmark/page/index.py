"""index.html for a folder of pages: links to those that `benchmark --html` wrote, known by their own summary."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mlx_dspark.benchmark.files import check_writable, write_whole
from mlx_dspark.benchmark.page.page import render
from mlx_dspark.benchmark.words import NOTHING
from mlx_dspark.errors import OptionError

NAME = "index.html"
META = "mlx-dspark-page"


def write_index(folder: Path) -> tuple[Path, int]:
    """Write the index and say where it is and how many pages it has. OptionError where there is none."""
    if not folder.is_dir():
        raise OptionError(f"--index {folder} is no folder; give the one that holds the pages")
    path = folder / NAME
    check_writable("--index", str(path))
    if path.exists() and not _is_ours(path):
        raise OptionError(f"--index {folder} has an {NAME} that is no index of pages; choose another folder")
    pages = [_entry(file, found) for file in sorted(folder.glob("*.html")) if (found := summary_of(file))]
    if not pages:
        raise OptionError(
            f"--index {folder} holds no page; make one with mlx-dspark benchmark --html {folder}/NAME.html"
        )
    write_whole(path, render(NAME, pages=pages))
    return path, len(pages)


def summary_of(path: Path) -> dict[str, Any] | None:
    """What a page says of itself; None for any other file."""
    reader = _Meta()
    try:
        reader.feed(path.read_text("utf-8"))
        value = json.loads(reader.content) if reader.content else None
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("kinds"), dict) else None


class _Meta(HTMLParser):
    content: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "meta" and values.get("name") == META:
            self.content = values.get("content")


def _is_ours(path: Path) -> bool:
    return "<title>Model pages · mlx-dspark</title>" in path.read_text("utf-8", "replace")


def _entry(path: Path, found: dict[str, Any]) -> dict[str, str]:
    verdict = "lossless" if found.get("lossless") else "NOT lossless"
    partial = ", partial" if found.get("partial") else ""
    return {
        "href": quote(path.name),
        "name": str(found.get("name")),
        "headline": str(found.get("headline") or NOTHING),
        "kinds": " · ".join(f"{kind} {ratio}" for kind, ratio in found["kinds"].items()),
        "about": f"{found.get('chip')}, {found.get('date')}, {verdict}{partial}",
    }
