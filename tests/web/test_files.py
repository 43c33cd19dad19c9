"""The page's files, without a browser: small, self-contained, no inline code, no way for a string to become markup."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from live import Live

import mlx_dspark

WEB = Path(mlx_dspark.__file__).parent / "server" / "web"
FILES = sorted(WEB.iterdir())


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_files_are_small_and_say_what_they_are(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) < 400
    if path.suffix in (".js", ".css"):
        assert text.startswith("/*\n * ")
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), "nothing comes from elsewhere"
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|localStorage", text
    )


def test_the_markup_has_no_inline_code_or_style() -> None:
    text = (WEB / "index.html").read_text("utf-8")
    assert not re.search(r"<[^>]*\s(on\w+|style)\s*=", text)
    assert not re.search(r"<style|<script(?![^>]*\ssrc=)", text)
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_every_element_a_script_names_exists() -> None:
    ids = set(re.findall(r'\sid="([^"]+)"', (WEB / "index.html").read_text("utf-8")))
    for path in WEB.glob("*.js"):
        named = set(re.findall(r'(?:byId|getElementById)\("([^"]+)"\)', path.read_text("utf-8")))
        assert named <= ids, path.name


def test_each_is_served_with_its_type_and_the_policy(live: Live) -> None:
    types = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for path in FILES:
        reply = httpx.get(f"{live.url}/{'' if path.name == 'index.html' else path.name}")
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith(types[path.suffix])
        assert reply.content == path.read_bytes()
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
    for hidden in ("index.html", "../app.py", "%2e%2e/app.py"):
        assert httpx.get(f"{live.url}/{hidden}").status_code == 404


def test_the_files_are_in_the_wheel() -> None:
    """hatch takes the package's folder whole, unless git ignores a file."""
    project = (WEB.parents[2] / "pyproject.toml").read_text("utf-8")
    assert re.search(r'targets\.wheel\]\npackages = \["mlx_dspark"\]', project)
