"""`calibrate` measures, keeps and prints; `generate` uses what was kept; traces say why a round drafted what it did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlx_dspark import load
from mlx_dspark.cli.main import main
from mlx_dspark.decode.cost import CostTable
from mlx_dspark.engine import calibrate
from mlx_dspark.engine.calibration_store import stored

TABLE = CostTable({128: tuple(0.002 + 0.0004 * r for r in range(8))}, tuple(0.0004 * n for n in range(8)))


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return int(stopped.value.code or 0)


def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replaces the measurement; returns the seconds each was allowed."""
    allowed: list[float] = []

    def quick(pair: object, *, seconds: float, **more: object) -> CostTable:
        allowed.append(seconds)
        return TABLE

    monkeypatch.setattr(calibrate, "measure", quick)
    return allowed


def test_it_prints_what_it_keeps(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = measured(monkeypatch)
    assert ended("calibrate", "--seconds", "7") == 0
    assert "2.00 2.40 2.80 3.20 3.60 4.00 4.40 4.80 ms" in capsys.readouterr().out
    assert ended("calibrate", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert CostTable.from_json(found["table"]) == TABLE
    assert allowed == [7, 60]
    kept = stored(load(calibrate=False).key)
    assert kept is not None
    assert kept.measured == found["measured"]


def test_a_pair_that_drafts_nothing_has_nothing_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("calibrate", "--mode", "baseline") == 2
    assert "nothing to measure" in capsys.readouterr().err


@pytest.mark.parametrize(("extra", "times"), [((), 1), (("--max-draft", "3"), 0), (("--no-calibrate",), 0)])
def test_generate_measures_when_it_has_to_decide(
    extra: tuple[str, ...], times: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    allowed = measured(monkeypatch)
    for _ in range(2):
        main_arguments = ("generate", "--prompt", "Hi", "--max-tokens", "4", "--quiet", *extra)
        assert ended(*main_arguments) == 0
    assert len(allowed) == times


def test_a_trace_says_what_was_decided_and_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    measured(monkeypatch)
    assert ended("generate", "--prompt", "Count to 9.", "--max-tokens", "40", "--trace", str(tmp_path / "t")) == 0
    rounds = [json.loads(line) for line in (tmp_path / "t").read_text().splitlines()]
    depth = rounds[0]["depth"]
    for r in rounds:
        choice = r["choice"]
        assert choice["reason"] in {"first token", "no room", "pays", "parked", "saving", "probe"}
        assert choice["asked"] >= choice["kept"] == r["proposed"] >= r["accepted"]
        assert choice["predicted"] >= 1
        assert r["depth"] == depth
        assert sum(r["times"].values()) > 0
        depth += len(r["tokens"])
    assert rounds[0]["choice"]["reason"] == "first token"
    assert any(r["choice"]["reason"] == "pays" for r in rounds)


def test_auto_is_a_word_in_python_too(monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch)
    pair = load()
    words = [pair.generate("Hi", max_tokens=8, max_draft=how, temperature=0).tokens for how in ("auto", None, 0, 5)]
    assert words.count(words[0]) == 4
