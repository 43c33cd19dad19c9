"""A run that is not the plain run, whole and undisturbed, yields no speed (issue 5; reports.md A-39, A4: honesty)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import measured
import pytest
from measured import SPOILT, only

from mlx_dspark.benchmark.measure import judge_all
from mlx_dspark.benchmark.pressure import Pressure, read_pressure
from mlx_dspark.benchmark.run import Run
from mlx_dspark.benchmark.verdict import CRASHED, DIFFERS, SWAPPED, UNCOMPARED


@pytest.mark.parametrize("name", SPOILT)
def test_A39_one_bad_run_takes_the_speed_of_its_arm_and_kind(name: str) -> None:
    what, spoil = SPOILT[name]
    report = measured.reported(only("cap 4", "code", 2, spoil))
    assert [f.what for f in report.faults] == [what]
    assert not report.ok
    assert report.lossless == (what == SWAPPED)
    bad = report.cell("code", "cap 4")
    assert bad
    assert (bad.speedup, bad.tokens_per_second, bad.faults) == (None, None, 1)
    for kind, arm in (("code", "cap 2"), ("code", "auto"), ("chat", "cap 4")):
        cell = report.cell(kind, arm)
        assert cell
        assert cell.speedup
        assert cell.speedup.median == pytest.approx(measured.SPEEDS[arm])
    totals = {t.arm: t.speedup for t in report.totals}
    assert totals["cap 4"] is None
    assert totals["cap 2"]
    assert "cap 4" in report.faults[0].sentence
    assert "trial 2" in report.faults[0].sentence


def test_a_rehearsal_counts_for_equality_but_not_for_memory() -> None:
    differs = measured.reported(only("auto", "chat", 0, SPOILT["one token differs"][1]))
    assert not differs.lossless
    cell = differs.cell("chat", "auto")
    assert cell
    assert cell.speedup is None
    assert measured.reported(only("auto", "chat", 0, SPOILT["page faults"][1])).ok


def test_where_plain_is_broken_nothing_is_compared_with_it() -> None:
    report = measured.reported(only("plain", "code", 1, SPOILT["a token short"][1]))
    assert all(cell.speedup is None for cell in report.of_kind("code"))
    assert all(cell.speedup for cell in report.of_kind("chat") if cell.arm != "plain")
    assert all(total.speedup is None for total in report.totals)
    crashed = measured.reported(
        lambda run: SPOILT["crash"][1](run) if run.arm == "plain" and run.kind == "code" else run
    )
    assert {f.what for f in crashed.faults} == {CRASHED, UNCOMPARED}
    assert not crashed.lossless


def test_plain_decoding_must_repeat_itself() -> None:
    runs = [measured.good_run(measured.arms()[0], measured.PROMPTS[0], trial, {}) for trial in (0, 1)]
    runs[1] = replace(runs[1], tokens=(*runs[1].tokens[:-1], 5))
    (fault,) = judge_all(runs)
    assert (fault.what, fault.detail) == (DIFFERS, "token 9 is 5, plain has 108")


def test_ratios_are_taken_within_a_trial() -> None:
    """A machine that gets slower from trial to trial slows plain and drafted runs alike."""
    report = measured.reported(lambda run: replace(run, decode_seconds=run.decode_seconds * 10**run.trial))
    for cell in report.cells:
        if cell.arm != "plain":
            assert cell.speedup
            assert cell.speedup.low == pytest.approx(measured.SPEEDS[cell.arm])
            assert cell.speedup.high == pytest.approx(measured.SPEEDS[cell.arm])
    auto = next(total for total in report.totals if total.arm == "auto")
    assert auto.of_best_fixed == {"chat": pytest.approx(1.6 / 1.5), "code": pytest.approx(1.6 / 1.5)}


def test_what_a_cell_holds() -> None:
    cell = measured.reported().cell("code", "cap 4")
    assert cell
    assert cell.accept_length == pytest.approx(8 / 4)
    assert cell.accepted_at_position == (0.75, 0.25)
    assert cell.drafts == {2: 4 * 2 * 3}
    assert cell.tokens == 9 * 2 * 3
    assert cell.prefill_tokens_per_second
    assert cell.prefill_tokens_per_second.median == pytest.approx(40)
    assert cell.tokens_per_second
    assert cell.tokens_per_second.median == pytest.approx(8 / (2 / 1.5 * 1.02))
    assert cell.shares
    shares = (cell.shares.draft, cell.shares.verify, cell.shares.rollback, cell.shares.other)
    assert shares == pytest.approx((0.25, 0.6, 0.1, 0.05))


def test_every_arm_takes_every_place_in_the_order() -> None:
    seen: list[str] = []

    def note(run: Run) -> Run:
        seen.append(run.arm)
        return run

    measured.reported(note)
    width = len(measured.SPEEDS)
    groups = [seen[i : i + width] for i in range(0, len(seen), width)]
    assert all(set(group) == set(measured.SPEEDS) for group in groups)
    assert {group[0] for group in groups} == set(measured.SPEEDS)


def test_a_stopped_measurement_keeps_complete_trials_and_says_so() -> None:
    a_trial = len(measured.SPEEDS) * len(measured.PROMPTS)
    report = measured.reported(stop_after=3 * a_trial - 1)
    assert report.partial
    assert report.ok
    assert (report.method.trials, report.method.trials_asked) == (1, 3)
    cell = report.cell("code", "auto")
    assert cell
    assert cell.speedup
    nothing = measured.reported(stop_after=a_trial + 1)
    assert nothing.partial
    assert nothing.method.trials == 0
    assert all(cell.speedup is None for cell in nothing.cells)
    before_plain = measured.reported(stop_after=0)
    assert before_plain.partial
    assert not before_plain.lossless


def test_pressure_reads_what_the_system_counts(tmp_path: Path) -> None:
    file = tmp_path / "vmstat"
    file.write_text("nr_free_pages 5\npswpin 3\npswpout 40\n")
    assert read_pressure(file).swapped == 43
    assert read_pressure(tmp_path / "none").swapped == 0
    assert read_pressure(file).faults >= 0
    assert Pressure(9, 5).since(Pressure(4, 2)) == Pressure(5, 3)
