"""The destination: complete or untouched, whatever happens; what may be replaced and what not."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import nvfp4_source as source
import pytest

from mlx_dspark.checkpoint import convert as converter
from mlx_dspark.checkpoint import stream_file
from mlx_dspark.checkpoint.convert import ConvertOptions, Report, convert
from mlx_dspark.checkpoint.safetensors import read_folder
from mlx_dspark.checkpoint.staging import Staging
from mlx_dspark.errors import ConversionError

PAUSED = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # test runners may have it ignored
signal.signal(signal.SIGHUP, signal.SIG_IGN if "nohup" in sys.argv else signal.SIG_DFL)
from mlx_dspark.checkpoint.convert import ConvertOptions, convert
def pause(done, total):
    print("half", flush=True)
    time.sleep(0.5 if "nohup" in sys.argv else 60)
convert(ConvertOptions(sys.argv[1], sys.argv[2], force=True), pause)
"""


def run(src: Path, dst: Path, **options: object) -> Report:
    return convert(ConvertOptions(str(src), str(dst), **options))


def big(folder: Path) -> Path:
    """A source larger than the buffers, so that it can be interrupted and changed while it is read."""
    found = source.module("fc", 1024, 4096)
    found["other.weight"] = ("BF16", (1 << 20,), np.random.default_rng(0).bytes(2 << 20))
    return source.write(folder, found)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def start(src: Path, dst: Path, *more: str) -> subprocess.Popen[str]:
    """A conversion in another process, stopped in the middle of writing."""
    child = subprocess.Popen(
        [sys.executable, "-c", PAUSED, str(src), str(dst), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout
    assert child.stdout.readline() == "half\n"
    return child


def end(child: subprocess.Popen[str], how: signal.Signals) -> int:
    child.send_signal(how)
    child.communicate(timeout=30)
    return child.returncode


def test_kill_9_leaves_nothing_loadable_and_a_second_run_succeeds(tmp_path: Path) -> None:
    src, dst = big(tmp_path / "src"), tmp_path / "dst"
    assert end(start(src, dst), signal.SIGKILL) == -9
    assert names(tmp_path) == [".dst.part", "src"]
    assert names(tmp_path / ".dst.part") == ["weights.part"]
    assert not list(tmp_path.rglob(".dst.part/model*.safetensors"))
    run(src, dst, verify=True)
    assert names(tmp_path) == ["dst", "src"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_leaves_nothing_and_the_old_output(tmp_path: Path, how: signal.Signals) -> None:
    src, dst = big(tmp_path / "src"), tmp_path / "new" / "dst"
    assert end(start(src, dst), how) != 0
    assert names(tmp_path) == ["src"]
    run(source.write(tmp_path / "small"), dst)
    before = {p.name: p.read_bytes() for p in dst.iterdir()}
    assert end(start(src, dst), how) != 0
    assert {p.name: p.read_bytes() for p in dst.iterdir()} == before
    assert names(dst.parent) == ["dst"]


def test_a_hangup_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    src, dst = big(tmp_path / "src"), tmp_path / "dst"
    assert end(start(src, dst, "nohup"), signal.SIGHUP) == 0
    assert names(tmp_path) == ["dst", "src"]


def test_two_at_once(tmp_path: Path) -> None:
    src, dst = big(tmp_path / "src"), tmp_path / "dst"
    child = start(src, dst)
    with pytest.raises(ConversionError, match=r"another conversion to .* is running"):
        run(src, dst)
    assert names(tmp_path / ".dst.part") == ["weights.part"]
    end(child, signal.SIGINT)
    run(src, dst)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    src, dst = big(tmp_path / "src"), tmp_path / "dst"
    real, count = os.write, 0

    def full(handle: int, data: memoryview) -> int:
        nonlocal count
        count += 1
        if count == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, data)

    with monkeypatch.context() as patch:
        patch.setattr(stream_file.os, "write", full)
        with pytest.raises(
            ConversionError, match=r"No space left on device\): it needs \d+ bytes and its disk has \d+ free"
        ):
            run(src, dst)
    assert names(tmp_path) == ["src"]
    monkeypatch.setattr("mlx_dspark.checkpoint.staging.free_bytes", lambda path: 1000)
    with pytest.raises(ConversionError, match=r"needs \d+ bytes, but its disk has 1000 free"):
        run(src, dst)
    assert names(tmp_path) == ["src"]


def test_short_and_refused_unbuffered_writes_are_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system may write less than asked, or refuse to write past its cache halfway."""
    src = big(tmp_path / "src")
    run(src, tmp_path / "want")
    real, calls = os.write, 0

    def odd(handle: int, data: memoryview) -> int:
        nonlocal calls
        calls += 1
        if calls == 2 and stream_file.DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(handle, data[: max(1, data.nbytes // 2)] if calls > 2 else data)

    monkeypatch.setattr(stream_file.os, "write", odd)
    run(src, tmp_path / "dst")
    assert (tmp_path / "dst" / "model.safetensors").read_bytes() == (
        tmp_path / "want" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("how", ["shrink", "touch", "replace"])
def test_a_source_that_changes_while_it_is_read(tmp_path: Path, how: str) -> None:
    src, dst = big(tmp_path / "src"), tmp_path / "dst"
    path = src / "model.safetensors"

    def change(done: int, total: int) -> None:
        if how == "shrink":
            os.truncate(path, path.stat().st_size // 2)
        elif how == "touch":
            os.utime(path, (1, 1))
        else:
            other = src / "other"
            other.write_bytes(path.read_bytes())
            other.replace(path)

    with pytest.raises(ConversionError, match="changed while"):
        convert(ConvertOptions(str(src), str(dst)), change)
    assert names(tmp_path) == ["src"]


def test_an_existing_output_needs_force_and_is_kept_until_success(tmp_path: Path) -> None:
    src, dst = source.write(tmp_path / "src"), tmp_path / "dst"
    run(src, dst)
    (dst / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConversionError, match="--force"):
        run(src, dst)
    bad = source.tensors()
    bad.pop("fc.weight_scale")
    before = (dst / "model.safetensors").read_bytes()
    with pytest.raises(Exception, match="fc has no weight_scale"):
        run(source.write(tmp_path / "bad", bad), dst, force=True)
    assert (dst / "model.safetensors").read_bytes() == before
    run(src, dst, force=True, format="mlx-nvfp4")
    assert "fc.scales" in read_folder(dst)
    assert names(dst) == ["LICENSE", "README.md", "config.json", "conversion.json", "model.safetensors"]
    assert names(tmp_path) == ["bad", "dst", "src"]


def test_force_replaces_checkpoints_only(tmp_path: Path) -> None:
    src, dst = source.write(tmp_path / "src"), tmp_path / "dst"
    dst.mkdir()
    (dst / "thesis.tex").write_text("years of work")
    with pytest.raises(ConversionError, match=r"holds thesis\.tex"):
        run(src, dst, force=True)
    (dst / "thesis.tex").rename(tmp_path / "thesis.tex")
    (dst / "photos").mkdir()
    with pytest.raises(ConversionError, match="holds photos"):
        run(src, dst, force=True)
    (dst / "photos").rmdir()
    run(src, dst)
    assert (dst / "model.safetensors").is_file()


def test_destinations_that_touch_the_source(tmp_path: Path) -> None:
    src = source.write(tmp_path / "a" / "src")
    (tmp_path / "link").symlink_to(src)
    for dst in (src, src / "inner", tmp_path / "a", tmp_path / "link"):
        with pytest.raises(ConversionError, match="is, contains or lies inside the source"):
            run(src, dst, force=True)
    linked = tmp_path / "linked"
    linked.mkdir()
    os.link(src / "model.safetensors", linked / "model.safetensors")
    with pytest.raises(ConversionError, match="same file as one of the source"):
        run(src, linked, force=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConversionError, match="is no folder"):
        run(src, tmp_path / "file", force=True)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConversionError, match="link to nothing"):
        run(src, tmp_path / "dangling", force=True)
    assert (src / "model.safetensors").is_file()


def test_a_swap_that_was_cut_short_is_put_back(tmp_path: Path) -> None:
    """Killed between the two renames: the old output comes back with the next run, even if that fails."""
    src, dst = source.write(tmp_path / "src"), tmp_path / "dst"
    run(src, dst)
    before = (dst / "model.safetensors").read_bytes()
    dst.rename(tmp_path / ".dst.old.part")
    with pytest.raises(RuntimeError), Staging(dst):
        raise RuntimeError
    assert (dst / "model.safetensors").read_bytes() == before
    assert names(tmp_path) == ["dst", "src"]
    (tmp_path / ".dst.old.part").mkdir()
    run(src, dst, force=True)
    assert names(tmp_path) == ["dst", "src"]


def test_a_failed_swap_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    src, dst = source.write(tmp_path / "src"), tmp_path / "dst"
    run(src, dst)
    before = (dst / "conversion.json").read_bytes()
    real = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.name == ".dst.part":
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(ConversionError, match="Input/output error"):
        run(src, dst, force=True, format="mlx-nvfp4")
    assert (dst / "conversion.json").read_bytes() == before
    assert names(tmp_path) == ["dst", "src"]


def test_unwritable_destination(tmp_path: Path) -> None:
    src = source.write(tmp_path / "src")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConversionError, match="file"):
        run(src, tmp_path / "file" / "dst")
    assert names(tmp_path) == ["file", "src"]
    assert converter.REPORT == "conversion.json"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak of another process")
def test_memory_does_not_grow_with_the_tensors(tmp_path: Path) -> None:
    """200 MB of tensors, 300 MB out: below 128 MiB in all."""
    found = {**source.module("a", 8192, 16384), **source.module("b", 2048, 32768)}
    found["c.weight"] = ("BF16", (50_000_000,), bytes(100_000_000))
    src = source.write(tmp_path / "src", found)
    code = (
        "import sys\nfrom mlx_dspark.cli.convert import run\nrun(sys.argv[1], sys.argv[2], verify=True)\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    )
    command = [sys.executable, "-c", code, str(src), str(tmp_path / "dst")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) / 1024 < 128
