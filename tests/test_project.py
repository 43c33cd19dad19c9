"""The project's own rules: imports point down, files and functions stay small, every file says what it is, docs hold."""

from __future__ import annotations

import ast
import hashlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlx_dspark

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "mlx_dspark"
FILES = sorted(PACKAGE.rglob("*.py"))
# A layer imports itself and lower ranks; two layers of one rank do not know each other.
RANK = {
    "ops": 0,
    "checkpoint": 1,
    "models": 2,
    "decode": 3,
    "engine": 4,
    "server": 5,
    "train": 5,
    "benchmark": 5,
    "cli": 6,
}
COMMON = {"errors", "options", "version"}
FACADE = {"__init__.py", "__main__.py"}
NOT_AT_RUN_TIME = {"mlx_lm", "torch", "transformers"}
MACHINE = re.compile(r"(?<![\w.:/-])/(?:home|mnt|root|tmp|Users|work)/\w|index[-_]url")


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imported(tree: ast.AST) -> Iterator[str]:
    """Every module a file imports, inside functions too; `from mlx_dspark import x` is `mlx_dspark.x`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            whole = node.module == "mlx_dspark"
            yield from (f"mlx_dspark.{a.name}" for a in node.names) if whole else (node.module or "",)


def may_import(importer: str, other: str) -> bool:
    """May `mlx_dspark/<importer>` import `mlx_dspark.<other>`?"""
    layer, theirs = importer.partition("/")[0], other.partition(".")[0]
    if theirs in COMMON or importer in FACADE:
        return True
    if layer not in RANK or theirs not in RANK:
        return False
    return theirs == layer or RANK[theirs] < RANK[layer]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    importer = name_of(path)
    assert importer in FACADE or path.stem in COMMON or importer.split("/")[0] in RANK, "a layer without a rank"
    for name in imported(ast.parse(path.read_text("utf-8"))):
        head, _, rest = name.partition(".")
        assert head not in NOT_AT_RUN_TIME, f"{importer} imports {name}"
        if head == "mlx_dspark":
            assert may_import(importer, rest), f"{importer} imports {name}"


def test_the_layering_rule_refuses_what_it_should() -> None:
    hidden = "def f():\n    from mlx_dspark import engine\n    import mlx_dspark.cli.main\n"
    assert list(imported(ast.parse(hidden))) == ["mlx_dspark.engine", "mlx_dspark.cli.main"]
    for importer, other in (
        ("ops/rows.py", "models.state"),
        ("errors.py", "ops"),
        ("engine/pair.py", "load"),
        ("server/app.py", "train.loop"),
    ):
        assert not may_import(importer, other)
    for importer, other in (
        ("cli/main.py", "decode.params"),
        ("ops/moe.py", "ops.linear"),
        ("options.py", "errors"),
        ("__init__.py", "engine.pair"),
    ):
        assert may_import(importer, other)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_sizes_and_contracts(path: Path) -> None:
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a file opens with its contract"
    assert len(text.splitlines()) < 400
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 < 60, node.name
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            assert len([a for a in arguments if a.arg not in ("self", "cls")]) < 8, node.name
        assert not (isinstance(node, ast.Name) and node.id == "hasattr"), "no probing"


def test_the_version_is_written_once() -> None:
    assert 'dynamic = ["version"' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert f"[{mlx_dspark.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert [name_of(p) for p in FILES if f'"{mlx_dspark.__version__}"' in p.read_text("utf-8")] == ["version.py"]


def texts() -> Iterator[Path]:
    for folder in (".ci", "bench", "dev", "docs", "mlx_dspark", "tests"):
        yield from (p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md", ".toml", "") and p.is_file())
    yield from (ROOT / name for name in ("Makefile", "pyproject.toml", *(p.name for p in ROOT.glob("*.md"))))


def test_no_file_names_a_machine() -> None:
    found = [f"{p.relative_to(ROOT)}: {m[0]}" for p in texts() for m in MACHINE.finditer(p.read_text("utf-8"))]
    assert found == []


def test_readme_targets_and_links_exist() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {"demo", "test"} <= set(re.findall(r"\bmake (\w+)", "\n".join(fenced(text))))
    assert set(re.findall(r"\bmake (\w+)", "\n".join(fenced(text)))) <= targets
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("http") or (ROOT / link).exists(), link


def fenced(text: str) -> list[str]:
    """Lines of all code blocks of a Markdown text, continued lines joined."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return "".join(blocks).replace("\\\n", " ").splitlines()


def test_readme_commands_are_in_the_help() -> None:
    lines = [shlex.split(line, comments=True) for line in fenced((ROOT / "README.md").read_text("utf-8"))
             if re.match(r"(\.venv/bin/)?mlx-dspark ", line)]  # fmt: skip
    assert len(lines) >= 2
    for command in sorted({line[1] for line in lines}):
        done = subprocess.run(
            [sys.executable, "-m", "mlx_dspark", command, "--help"], capture_output=True, text=True, check=True
        )
        known = set(re.findall(r"--[\w-]+", done.stdout))
        used = {word for line in lines if line[1] == command for word in line if word.startswith("--")}
        assert used <= known, f"{command}: {sorted(used - known)}"


def test_the_extras_the_readme_installs_exist() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    extras = {extra for found in re.findall(r"'\.\[([\w,]+)\]'", readme) for extra in found.split(",")}
    assert extras == {"cpu", "dev", "oracle"}
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras)


def test_the_embedded_pair_is_small_and_the_one_its_card_describes() -> None:
    demo = PACKAGE / "demo"
    files = {p.relative_to(demo).as_posix(): p for p in demo.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert sum(p.stat().st_size for p in files.values()) < 20_000_000
    card = files.pop("README.md").read_text("utf-8")
    listed = {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", card, re.MULTILINE)}
    assert listed == {name: hashlib.sha256(p.read_bytes()).hexdigest() for name, p in files.items()}
