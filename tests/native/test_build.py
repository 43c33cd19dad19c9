"""What the accelerator promises beside its results: symbols, clean runs under the sanitizers, installing anywhere."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from layer_twin import native, needs_native

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native" / "cpu"

needs_source = pytest.mark.skipif(not NATIVE.is_dir(), reason="no source of the accelerator here")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
INSTALLED = {d.metadata["Name"] for d in distributions()}  # finding pip by its spec switches setuptools' distutils off
needs_nm = pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm (binutils)")


def symbols(file: str | Path, *options: str) -> list[tuple[str, str]]:
    """(kind, name) of what a file defines for others."""
    found = subprocess.run(["nm", "--defined-only", *options, file], capture_output=True, text=True, check=True).stdout
    return [(line.split()[-2], line.split()[-1]) for line in found.splitlines() if line]


@needs_native
@needs_nm
def test_extension_exports_its_entry_alone() -> None:
    """Whatever else it exported could replace, or be replaced by, libmlx's or the C++ library's own."""
    assert symbols(native._ext.__file__, "--dynamic") == [("T", "PyInit__ext")]


@pytest.mark.slow
@needs_source
@needs_compiler
@needs_nm
@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="such code is for x86-64")
@pytest.mark.parametrize("name", ["matmul_avx2", "layers_avx2", "matmul_avx512"])
def test_files_of_an_instruction_set_leave_no_function_for_the_linker_to_pick(name: str, tmp_path: Path) -> None:
    """Without optimisation every inline function is emitted, so one that could stand in for portable code shows."""
    made = tmp_path / f"{name}.o"
    flags = ["-std=c++20", "-O0", "-mavx2", "-mfma", "-mf16c", "-Wno-psabi"]
    if name.endswith("avx512"):
        flags += [f"-mavx512{part}" for part in ("f", "vl", "bw", "dq", "vnni")]
    subprocess.run(["g++", *flags, "-c", NATIVE / "src" / f"{name}.cpp", "-o", made], check=True)
    assert [n for kind, n in symbols(made, "--extern-only") if kind != "V"] == [f"_ZN6dspark{len(name)}{name}E"]


@pytest.mark.slow
@needs_source
@needs_compiler
def test_kernels_pass_a_short_fuzz_under_the_sanitizers() -> None:
    """native/cpu/fuzz/run.sh for longer ones."""
    ran = subprocess.run(
        [NATIVE / "fuzz" / "run.sh", "2"], check=False, capture_output=True, text=True, env={**os.environ, "CXX": "g++"}
    )
    if ran.returncode == 2:
        pytest.skip(ran.stderr.strip()[-200:])
    assert ran.returncode == 0, ran.stdout + ran.stderr


def python(code: str, path: str | Path, **variables: str) -> str:
    """What a fresh interpreter that looks for modules at `path` first prints."""
    settings = {"PATH": os.environ["PATH"], "PYTHONPATH": str(path), **variables}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=settings, check=True)
    return ran.stdout.strip()


@pytest.mark.slow
@needs_source
@pytest.mark.skipif(not {"scikit_build_core", "scikit-build-core"} & INSTALLED, reason="needs scikit-build-core")
@pytest.mark.skipif("pip" not in INSTALLED, reason="needs pip")
def test_without_a_compiler_it_installs_and_says_what_is_missing(tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(NATIVE, source, ignore=shutil.ignore_patterns("build", "_build.py", "*.so"))
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--target", str(tmp_path / "site")]
    bare = {**os.environ, "PATH": str(tmp_path), "CC": "", "CXX": ""}
    subprocess.run([sys.executable, "-m", "pip", "install", *options, source], check=True, env=bare)
    code = (
        "import mlx_dspark_cpu as m; from mlx_dspark.ops.native import find_native;"
        "print(m.__file__); print(m.available(), find_native()[0]); print(find_native()[1])"
    )
    where, off, why = python(code, f"{tmp_path / 'site'}{os.pathsep}{ROOT}").splitlines()
    assert Path(where).is_relative_to(tmp_path)
    assert off == "False None"
    assert "install g++" in why
    assert "\n" not in why


@needs_native
def test_plain_code_can_be_asked_for() -> None:
    code = "import mlx_dspark_cpu as m; print(m.features()['simd'])"
    site = Path(native.__file__).parents[1]
    assert python(code, site, MLX_DSPARK_SIMD="portable") == "portable"
    assert python(code, site, MLX_DSPARK_SIMD="") == native.features()["simd"]
