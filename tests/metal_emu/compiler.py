"""clang++ for the emulator: is it there, and a loaded library for a translated kernel.

The scheduler is compiled once a process and linked into every kernel; equal kernels are compiled once.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
COMPILER = "clang++"
# Fortified headers take a jump between fibers for a smashed stack.
FLAGS = ["-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-I", str(HERE), "-c"]
# An uninitialised float reads as NaN, as it may on a GPU; what clang can see of it is an error already.
STRICT = [
    "-ftrivial-auto-var-init=pattern",
    "-fsanitize=array-bounds,integer-divide-by-zero",
    "-fno-sanitize-recover=all",
    "-fsanitize-minimal-runtime",
    "-Werror=uninitialized",
    "-Werror=return-type",
    "-Wno-unused-value",
]


class CompileError(Exception):
    """The compiler's words on a kernel; `body:LINE` and `header:LINE` count from 1 in the texts given."""


def missing() -> str | None:
    """Why kernels cannot be emulated on this machine, or None."""
    if platform.system() != "Linux":
        return f"the Metal emulator needs Linux (fibers, ELF sections), and this is {platform.system()}"
    if shutil.which(COMPILER) is None:
        return f"the Metal emulator needs {COMPILER}, which is not installed (Debian, Ubuntu: apt-get install clang)"
    return None


@functools.cache
def load(code: str) -> ctypes.CDLL:
    """`code` compiled against the shim and linked with the scheduler. Raises CompileError."""
    folder = Path(tempfile.mkdtemp(dir=_folder().name))
    source, compiled, library = folder / "kernel.cpp", folder / "kernel.o", folder / "kernel.so"
    source.write_text(code, "utf-8")
    _clang(*FLAGS, *STRICT, str(source), "-o", str(compiled))
    _clang("-shared", str(compiled), str(_scheduler()), "-o", str(library))
    loaded = ctypes.CDLL(str(library))
    loaded.emu_run.restype = ctypes.c_char_p
    return loaded


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="metal-emu-")


@functools.cache
def _scheduler() -> Path:
    compiled = Path(_folder().name) / "runtime.o"
    _clang(*FLAGS, "-Wall", "-Wextra", "-Werror", str(HERE / "runtime.cpp"), "-o", str(compiled))
    return compiled


def _clang(*arguments: str) -> None:
    done = subprocess.run([COMPILER, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(done.stderr)
