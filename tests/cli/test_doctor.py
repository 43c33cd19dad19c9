"""`doctor`: what it says and how it ends."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import mlx_dspark
from mlx_dspark import load
from mlx_dspark.cli.main import main
from mlx_dspark.decode.cost import CostTable
from mlx_dspark.engine.calibration_store import keep
from mlx_dspark.ops.native import SWITCH, find_native


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", *arguments])
    return int(stopped.value.code or 0)


def test_it_names_versions_kernels_places_and_the_probe(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended() == 0
    said = capsys.readouterr().out
    for words in ("mlx-dspark", "kernels", "hub cache", "LM Studio", "bit-exact at widths 1-8", "all well"):
        assert words in said


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is True
    assert found["device"]["kernels"] == find_native()[1]
    template = Path(mlx_dspark.__file__).parent / "demo" / "target-4bit" / "chat_template.jinja"
    assert found["pair"]["chat template"] == f"sha256 {hashlib.sha256(template.read_bytes()).hexdigest()}"


def test_a_model_that_does_not_load_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--model", "./nowhere") == 1
    said = capsys.readouterr().out
    assert "cannot be loaded: --model ./nowhere is no folder here" in said
    assert "models are looked for in" in said


def test_the_measured_costs_are_shown_or_how_to_make_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ended() == 0
    assert "mlx-dspark calibrate" in capsys.readouterr().out
    pair = load(calibrate=False)
    keep(pair.key, CostTable({128: (0.0101, 0.012)}, (0.0, 0.003)))
    assert ended() == 0
    said = capsys.readouterr().out
    assert "10.10 12.00 ms" in said
    assert "3.00 ms" in said


def test_the_accelerator_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    assert find_native() == (None, f"mlx-dspark-cpu is off: {SWITCH} is 0")


class OtherBuild:
    """An accelerator that works and was made for another mlx-dspark."""

    def __init__(self, features: dict[str, Any]):
        self._features = features

    def available(self) -> bool:
        return True

    def features(self) -> dict[str, Any]:
        return self._features


@pytest.mark.parametrize(("features", "word"), [({"version": "0.1.0"}, "older"), ({"interface": 99}, "newer")])
def test_another_builds_kernels_are_left_alone(
    features: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlx_dspark_cpu", OtherBuild(features))
    monkeypatch.delenv(SWITCH, raising=False)
    kernels, why = find_native()
    assert kernels is None
    assert f"{word} than this mlx-dspark" in why
    assert "pip install --force-reinstall" in why
