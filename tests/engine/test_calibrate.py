"""Calibration: what is measured, when it is measured anew, and that no state of the disk is an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import build
import pytest

from mlx_dspark import Pair, load
from mlx_dspark.decode.cap import FixedCap
from mlx_dspark.decode.cost import WIDTHS, CostTable
from mlx_dspark.decode.round import run_round
from mlx_dspark.decode.session import Session
from mlx_dspark.engine import calibrate
from mlx_dspark.engine.calibrate import calibrated, measure
from mlx_dspark.engine.calibration_store import FORM, cache_folder, keep, path_of, stored
from mlx_dspark.engine.fingerprint import fingerprint
from mlx_dspark.models.drafter import Contest, DraftBlock, DraftRequest
from mlx_dspark.models.lookup import Lookup

KEY = {"machine": "m", "device": "cpu", "checkpoints": ["a", "b"]}
TABLE = CostTable({128: tuple(0.01 + 0.001 * r for r in range(8))}, (0.0, 0.002), 1e-5, 1e-4)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def ticking(step: float) -> Callable[[], float]:
    """A clock that moves on by `step` seconds each time it is read."""
    now = [0.0]

    def clock() -> float:
        now[0] += step
        return now[0]

    return clock


def test_a_table_of_every_width_and_draft_comes_out(pair_of) -> None:
    pair = pair_of("fp32")
    shares: list[float] = []
    table = measure(pair, clock=ticking(0.001), seconds=5.0, progress=shares.append)
    assert 128 in table.verify
    assert all(len(times) == WIDTHS for times in table.verify.values())
    assert table.max_draft == pair.drafter.max_draft
    assert all(s == pytest.approx(0.001) for s in (*table.verify[128], table.lookup))
    # By this clock a whole round takes a tick, as a step does: proposing adds nothing to it.
    assert all(0 < s < 1e-6 for s in table.draft[1:])
    assert table.overhead == 0
    assert table.read == 0
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_slow_machine_measures_the_first_depth_alone_and_says_so(pair_of) -> None:
    table = measure(pair_of("fp32"), clock=ticking(0.5), seconds=1.0)
    assert table.depths == (128,)
    assert "2048 tokens" in table.note


def test_a_depth_the_memory_does_not_allow_is_left_out(pair_of, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "machine_bytes", lambda: 1)
    table = measure(pair_of("fp32"), clock=ticking(1e-6), seconds=100.0)
    assert table.depths == (128,)
    assert "memory" in table.note


def test_what_drafting_costs_is_what_a_round_takes_with_it(pair_of, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of v drafts takes 5 + v ms, 3 more with a look; all else takes next to nothing."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1e-5
        return now[0]

    def slow_round(target: object, sessions: list[Session]) -> object:
        cap = sessions[0].cap
        drafts = cap.drafts if isinstance(cap, FixedCap) else 0
        now[0] += 0.001 * (5 + drafts + 3 * getattr(cap, "looks", False))
        return run_round(target, sessions)  # type: ignore[arg-type]

    monkeypatch.setattr(calibrate, "run_round", slow_round)
    pair = pair_of("fp32")
    table = measure(pair, clock=clock, seconds=1.0)
    plain = table.plain_time(128)
    for drafts in range(1, pair.drafter.max_draft + 1):
        whole = table.verify_time(1 + drafts, 128) + table.overhead + table.draft_time(drafts)
        assert whole - plain == pytest.approx(0.001 * drafts, abs=1e-4)
    assert table.read == pytest.approx(0.003, abs=1e-4)


def test_with_lookup_drafts_the_drafter_is_measured_and_not_the_lookup(pair_of) -> None:
    """The measured text repeats itself, so a copy is always at hand."""
    pair = pair_of("fp32")
    asked: list[int] = []

    class Listening(type(pair.drafter)):  # type: ignore[misc]
        def propose(self, requests: list[DraftRequest]) -> list[DraftBlock]:
            asked.extend(r.count for r in requests)
            return super().propose(requests)

    listening = Listening(**{f.name: getattr(pair.drafter, f.name) for f in fields(pair.drafter)})
    measure(replace(pair, drafter=Contest([Lookup(), listening])), clock=ticking(0.01), seconds=1.0)
    assert set(asked) == set(range(1, pair.drafter.max_draft + 1))


def test_measuring_leaves_the_answers_alone(pair_of) -> None:
    pair = pair_of("fp32")
    before = pair.generate("abc", max_tokens=20, temperature=0).tokens
    measure(pair, clock=ticking(0.01), seconds=1.0)
    assert pair.generate("abc", max_tokens=20, temperature=0).tokens == before


def test_what_is_kept_is_found_again(home: Path) -> None:
    assert stored(KEY) is None
    kept = keep(KEY, TABLE)
    found = stored(KEY)
    assert found == kept
    assert found.table == TABLE
    assert stored({**KEY, "device": "gpu"}) is None
    assert path_of(KEY).is_relative_to(home)
    assert [p.suffix for p in path_of(KEY).parent.iterdir()] == [".json"], "nothing half written remains"


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"form": 1}', "\x00\xff", '{"form": 1, "key": {}, "table": {}}', "[" * 100_000],
)
def test_a_damaged_file_is_no_calibration(home: Path, content: str) -> None:
    keep(KEY, TABLE)
    path_of(KEY).write_bytes(content.encode("latin-1"))
    assert stored(KEY) is None
    keep(KEY, TABLE)
    assert stored(KEY) is not None


@pytest.mark.parametrize("change", [{"form": FORM + 1}, {"key": {"machine": "other"}}, {"table": {"verify": {}}}])
def test_a_file_that_is_not_what_its_name_says_is_no_calibration(home: Path, change: dict[str, object]) -> None:
    keep(KEY, TABLE)
    path_of(KEY).write_text(json.dumps({**json.loads(path_of(KEY).read_text()), **change}))
    assert stored(KEY) is None


def test_a_cache_that_is_a_folder_where_the_file_should_be(home: Path) -> None:
    path_of(KEY).mkdir(parents=True)
    assert stored(KEY) is None


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == tmp_path / ".cache" / "mlx-dspark"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder() == tmp_path / "Library" / "Caches" / "mlx-dspark"


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Pair]:
    """Replaces the measurement by one that takes no time and is counted."""
    measured: list[Pair] = []

    def quick(pair: Pair, **more: object) -> CostTable:
        measured.append(pair)
        return TABLE

    monkeypatch.setattr(calibrate, "measure", quick)
    return measured


def test_a_pair_is_measured_once_and_again_when_its_weights_change(
    home: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = counted(monkeypatch)
    names = str(checkpoint / "target"), str(checkpoint / "drafter")
    for _ in range(2):
        pair = load(*names)
        assert pair.calibration is not None
        assert pair.calibration.table == TABLE
    assert len(measured) == 1
    weights = checkpoint / "drafter" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x3d")
    load(*names)
    assert len(measured) == 2
    load(*names, dtype="float32", drafter_bits=8)
    assert len(measured) == 3


def test_without_calibrating_nothing_is_measured_and_drafting_is_still_decided(
    home: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = counted(monkeypatch)
    names = str(checkpoint / "target"), str(checkpoint / "drafter")
    pair = load(*names, calibrate=False)
    assert measured == []
    assert pair.calibration is None
    assert (
        pair.generate("abc", max_tokens=30, temperature=0).tokens
        == pair.generate("abc", max_tokens=30, max_draft=0, temperature=0).tokens
    )
    assert load(*names, mode="baseline").calibration is None
    assert measured == []


def test_a_cache_that_cannot_be_made_costs_one_line(home: Path, pair_of, monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch)
    home.write_text("a file where the folder should be")
    warnings: list[str] = []
    found = calibrated(pair_of("fp32"), measure_now=True, warn=warnings.append)
    assert found is not None
    assert found.table == TABLE
    assert len(warnings) == 1
    assert "measured again" in warnings[0]


def test_a_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    one, two = build.write_target(tmp_path / "one"), build.write_target(tmp_path / "two")
    assert fingerprint(one) == fingerprint(two)
    assert len(fingerprint(one)) == 16
    seen = {fingerprint(one)}
    weights = next(two.glob("*.safetensors"))
    for change in (0, 20, -1):
        data = bytearray(weights.read_bytes())
        data[change] ^= 1
        weights.write_bytes(bytes(data))
        seen.add(fingerprint(two))
    (one / "config.json").write_text((one / "config.json").read_text() + " ")
    seen.add(fingerprint(one))
    assert len(seen) == 5
