"""Kernels for Linux CPUs as MLX primitives. Knows mlx.core and its own extension; knows no model.

Importing never fails: where the extension cannot be used, `available()` is false and `status()` says why in one
sentence. Where it can, its functions are attributes of this module.
"""

import importlib
import platform
import sys

__version__ = "0.1.0"
INTERFACE = 3  # what the functions take and give; mlx-dspark uses no other than the one it was written for


def _load():
    """The extension module, or None, and the sentence that says which."""
    if not sys.platform.startswith("linux"):
        return None, f"mlx-dspark-cpu is off: it is for Linux, this is {platform.system()}"
    try:
        built = importlib.import_module("mlx_dspark_cpu._build").MLX_VERSION
    except ImportError:
        return None, (
            "mlx-dspark-cpu is off: it was installed without its compiled part "
            "(no C++20 compiler, or the build failed); install g++ 11 or newer, then pip install --force-reinstall "
            "--no-deps --no-cache-dir mlx-dspark-cpu (in a checkout: ./native/cpu); until then mlx's own CPU ops run"
        )
    try:
        mlx_version = importlib.import_module("mlx.core").__version__  # also loads libmlx.so before the extension
    except ImportError as error:
        return None, f"mlx-dspark-cpu is off: mlx cannot be imported ({error})"
    if mlx_version != built:
        return None, (
            f"mlx-dspark-cpu is off: it was built for mlx {built} and mlx {mlx_version} is installed; "
            f"install mlx=={built} or the mlx-dspark-cpu made for mlx {mlx_version}"
        )
    try:
        return importlib.import_module("mlx_dspark_cpu._ext"), f"mlx-dspark-cpu {__version__} is on"
    except ImportError as error:
        return None, f"mlx-dspark-cpu is off: its extension cannot be loaded ({error})"


_ext, _status = _load()
if _ext is not None:
    globals().update({name: getattr(_ext, name) for name in dir(_ext) if not name.startswith("_")})


def __getattr__(name):
    raise AttributeError(f"mlx_dspark_cpu has no {name!r}; {_status}")


def available():
    """Can the kernels be used here?"""
    return _ext is not None


def status():
    """One sentence: on with what, or off and why."""
    if _ext is None:
        return _status
    threads = _ext._threads()
    return f"{_status}: {_ext._simd()} code, {threads} thread{'' if threads == 1 else 's'}"


def features():
    """What is in use: simd, simd_built, threads, mlx (built against), interface, version; the last alone without it."""
    if _ext is None:
        return {"version": __version__}
    return {
        "simd": _ext._simd(),
        "simd_built": _ext._simd_built(),
        "threads": _ext._threads(),
        "mlx": importlib.import_module("mlx_dspark_cpu._build").MLX_VERSION,
        "interface": INTERFACE,
        "version": __version__,
    }
