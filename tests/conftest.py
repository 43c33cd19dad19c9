"""Shared checkpoints, made once a run."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import build
import mlx.core as mx
import pytest

from mlx_dspark import Pair, load

FORMATS = {
    "fp32": {"pattern": "M*EM-E*"},
    "bf16": {"pattern": "M*M-*M", "dtype": mx.bfloat16, "n_routed_experts": 0, "num_experts_per_tok": 0},
    "4-bit": {"pattern": "M*EM-E*", "dtype": mx.bfloat16, "bits": 4},
}


@pytest.fixture(scope="session")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """Tiny random pairs by format, loaded once."""
    loaded: dict[str, Pair] = {}

    def get(name: str) -> Pair:
        if name not in loaded:
            root = tmp_path_factory.mktemp(name)
            target = build.write_target(root / "target", **FORMATS[name])
            drafter = build.write_drafter(root / "drafter")
            loaded[name] = load(str(target), str(drafter), dtype="bfloat16" if name == "bf16" else "auto")
        return loaded[name]

    return get


@pytest.fixture(scope="session")
def demo() -> Pair:
    """The embedded pair."""
    return load()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder with a fresh tiny `target` and `drafter` to damage."""
    build.write_target(tmp_path / "target")
    build.write_drafter(tmp_path / "drafter")
    return tmp_path


@pytest.fixture(scope="session")
def maker() -> ModuleType:
    """bench/make_nvfp4_source.py."""
    path = Path(__file__).parents[1] / "bench" / "make_nvfp4_source.py"
    spec = importlib.util.spec_from_file_location("make_nvfp4_source", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Calibrations of this run go to a folder of its own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
