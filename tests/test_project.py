"""The project's own rules: imports point down, files and functions stay small, every file says what it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlx_dspark

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mlx_dspark"
FILES = sorted(PACKAGE.rglob("*.py"))
ORDER = ["ops", "checkpoint", "models", "decode", "engine", "cli"]
COMMON = {"errors", "options", "version"}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    layer = path.relative_to(PACKAGE).parts[0]
    if layer not in ORDER:
        return
    for name in imported(ast.parse(path.read_text("utf-8"))):
        parts = name.split(".")
        if parts[0] != "mlx_dspark" or len(parts) == 1 or parts[1] in COMMON:
            continue
        assert ORDER.index(parts[1]) <= ORDER.index(layer), f"{path.name} imports {name}"
        assert "mlx_lm" not in name
        assert "transformers" not in name


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_sizes_and_contracts(path: Path) -> None:
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a file opens with its contract"
    assert len(text.splitlines()) < 400
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 60, node.name
            names = [a.arg for a in (*node.args.args, *node.args.kwonlyargs) if a.arg not in ("self", "cls")]
            assert len(names) < 8, node.name
        assert not (isinstance(node, ast.Name) and node.id in ("hasattr",)), "no probing"


def test_the_version_is_written_once() -> None:
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert f"[{mlx_dspark.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_readme_commands_are_real() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert set(re.findall(r"`?make (\w+)", text)) <= targets | {"."}
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("http") or (ROOT / link).exists(), link


def test_the_embedded_pair_is_small() -> None:
    assert sum(p.stat().st_size for p in (PACKAGE / "demo").rglob("*") if p.is_file()) < 20_000_000
