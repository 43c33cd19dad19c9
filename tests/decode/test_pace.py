"""Prices: in plain steps, never falling with more rows, corrected by measured rounds."""

from __future__ import annotations

import numpy as np
import pytest
from simulate import LINEAR

from mlx_dspark.decode.cost import CostTable
from mlx_dspark.decode.pace import GUESS, REFERENCE, Pace


def test_prices_are_in_plain_steps() -> None:
    prices = Pace(LINEAR).prices(128, 7)
    assert list(prices.extra) == pytest.approx([0.2 * n for n in range(8)])
    assert list(prices.draft) == pytest.approx([0.0, *(0.15 + 0.01 * n for n in range(1, 8))])
    assert prices.of("lookup", 3) == pytest.approx(0.001)
    assert prices.of("dspark", 3) == prices.draft[3]
    assert prices.of("lookup", 0) == 0


def test_more_rows_never_cost_less() -> None:
    """A dip is noise of the measurement; it would draw the cap to it."""
    dipping = CostTable({0: (1.0, 1.5, 1.2, 2.0, 1.9, 2.2, 2.1, 3.0)})
    extra = list(Pace(dipping).prices(0, 7).extra)
    assert extra == sorted(extra)


def test_equal_prices_are_one_object() -> None:
    """So that a plan made for them can stand."""
    pace = Pace(LINEAR)
    assert pace.prices(130, 7) is pace.prices(140, 7)


def rounds(pace: Pace, factor: float, count: int = 600) -> float:
    """Price of verifying 3 drafts after rounds whose drafting costs `factor` of the table's."""
    for i in range(count):
        added = factor * (LINEAR.draft_time(3) + LINEAR.verify_time(4, 128) - LINEAR.verify_time(1, 128))
        plain = LINEAR.verify_time(1, 128)
        pace.observe(128, ("", 0) if i % 4 == 0 else ("dspark", 3), 0 if i % 4 == 0 else 3, plain + (i % 4 > 0) * added)
    return pace.prices(128, 7).extra[3]


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.5])
def test_a_measured_table_is_corrected_slowly_and_within_limits(factor: float) -> None:
    assert rounds(Pace(LINEAR), factor) == pytest.approx(0.6 * factor, rel=0.15)
    assert rounds(Pace(LINEAR), 50.0) <= 0.6 * 2.0 + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_rounds_that_are_much_alike_and_vary_by_chance_do_not_move_a_measured_table(seed: int) -> None:
    """Whole rounds vary by some percent; those of 5 to 7 drafts tell little of what none would take."""
    pace, random = Pace(LINEAR), np.random.default_rng(seed)
    for _ in range(600):
        drafts = int(random.integers(5, 8))
        seconds = LINEAR.draft_time(drafts) + LINEAR.verify_time(1 + drafts, 128)
        pace.observe(128, ("dspark", drafts), drafts, seconds * (1 + 0.06 * abs(random.normal())))
        assert pace.prices(128, 7).extra[3] == pytest.approx(0.6, rel=0.15)


@pytest.mark.parametrize("factor", [0.1, 1.0, 8.0])
def test_a_guess_learns_any_price(factor: float) -> None:
    guess, told = Pace(GUESS, trusted=False), Pace(LINEAR, trusted=False)
    assert guess.wants_plain
    assert rounds(told, factor) == pytest.approx(0.6 * factor, rel=0.1)


def test_a_guess_wants_a_plain_round_now_and_then() -> None:
    pace = Pace(GUESS, trusted=False)
    pace.observe(0, ("", 0), 0, 1.0)
    assert not pace.wants_plain
    for _ in range(REFERENCE):
        pace.observe(0, ("dspark", 3), 3, 2.0)
    assert pace.wants_plain
    assert not Pace(LINEAR).wants_plain


def test_one_slow_round_changes_little() -> None:
    pace = Pace(LINEAR)
    rounds(pace, 1.0)
    before = pace.prices(128, 7).extra[3]
    pace.observe(128, ("dspark", 3), 3, 5.0)
    assert pace.prices(128, 7).extra[3] == pytest.approx(before, rel=0.05)


def test_a_machine_that_slows_down_while_it_drafts_does_not_make_drafting_dear() -> None:
    """Without a plain round to compare with, both would explain the times; the table's proportions decide."""
    pace = Pace(LINEAR)
    drafted = LINEAR.draft_time(3) + LINEAR.verify_time(4, 128)
    for i in range(2000):
        pace.observe(128, ("dspark", 3), 3, (1.0 + 0.3 * (i > 200) + 0.05 * (-1) ** i) * drafted)
    assert pace.prices(128, 7).extra[3] == pytest.approx(0.6, rel=0.03)
