"""A cost table reads its measured points exactly, goes on sensibly between and beyond them, and refuses nonsense."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_dspark.decode.cost import CostTable
from mlx_dspark.errors import CalibrationError

seconds = st.floats(1e-6, 10)
tables = st.builds(
    CostTable,
    st.dictionaries(
        st.integers(0, 100_000), st.lists(seconds, min_size=8, max_size=8).map(tuple), min_size=1, max_size=4
    ),
    st.lists(seconds, min_size=1, max_size=9).map(tuple),
    seconds,
    seconds,
    st.text(max_size=20),
)
TABLE = CostTable(
    {100: (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0), 300: (2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5)},
    (0.0, 0.5, 0.6, 0.7),
    0.01,
    0.1,
)


@given(tables)
def test_a_table_survives_json(table: CostTable) -> None:
    assert CostTable.from_json(json.loads(json.dumps(table.to_json()))) == table


@given(tables)
def test_measured_points_are_read_exactly(table: CostTable) -> None:
    for depth, times in table.verify.items():
        assert [table.verify_time(rows, depth) for rows in range(1, 9)] == list(times)
    assert [table.draft_time(n) for n in range(len(table.draft))] == list(table.draft)


@given(tables, st.integers(1, 64), st.integers(0, 200_000))
def test_times_between_and_beyond_stay_positive(table: CostTable, rows: int, depth: int) -> None:
    assert table.verify_time(rows, depth) > 0
    assert table.draft_time(rows) >= 0
    assert table.plain_time(depth) == table.verify_time(1, depth) + table.overhead


def test_between_depths_by_straight_lines() -> None:
    assert table_row(200) == [1.5, 2.25, 3.0, 3.75, 4.5, 5.25, 6.0, 6.75]


def test_below_the_first_depth_flat_and_beyond_the_last_never_falling() -> None:
    assert table_row(0) == table_row(100)
    assert TABLE.verify_time(1, 500) == 3.0
    assert TABLE.verify_time(8, 500) == 5.5, "a fall of the measured line does not go on"


def test_beyond_the_measured_rows_and_drafts_by_the_mean_step() -> None:
    assert TABLE.verify_time(10, 100) == 10.0
    assert TABLE.draft_time(6) == pytest.approx(0.7 + 3 * 0.7 / 3)
    assert CostTable({0: (1.0,)}).verify_time(5, 9) == 1.0
    assert CostTable({0: (1.0,)}).draft_time(5) == 0.0


def table_row(depth: int) -> list[float]:
    return [TABLE.verify_time(rows, depth) for rows in range(1, 9)]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"verify": {}}, "verify"), ({"verify": []}, "cost table"), ({"verify": {"-1": [1.0]}}, "depth"),
        ({"verify": {"x": [1.0]}}, "depth"), ({"verify": {"1": []}}, "verify at depth 1"), ({"verify": {"1": 3}}, "verify"),
        ({"verify": {"1": [0.0]}}, "more than 0"), ({"verify": {"1": [float("nan")]}}, "nan"),
        ({"verify": {"1": ["1"]}}, "verify"), ({"verify": {"1": [True]}}, "True"), ({"draft": None}, "draft"),
        ({"draft": [-1.0]}, "-1.0"), ({"lookup": None}, "lookup"), ({"overhead": 1e9}, "3600"), ({"note": 3}, "note"),
        ({"read": -1}, "read"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_value_limit_and_next_step(change: dict[str, Any], word: str) -> None:
    with pytest.raises(CalibrationError, match=r"must be .*mlx-dspark calibrate") as caught:
        CostTable.from_json({**TABLE.to_json(), **change})
    assert word in str(caught.value)


@pytest.mark.parametrize("value", [None, [], 3, "x", {}])
def test_what_is_no_table_at_all_is_refused(value: Any) -> None:
    with pytest.raises(CalibrationError):
        CostTable.from_json(value)


def test_it_is_described_in_milliseconds() -> None:
    lines = dict(CostTable({128: (0.0105, 0.011)}, (0.0, 0.002), 1e-5, 2e-4, "8192 left out", 1e-4).describe())
    assert lines["target step after 128 tokens, 1-2 rows"] == "10.50 11.00 ms"
    assert lines["drafter, 1-1 drafts"] == "2.00 ms"
    assert lines["reading drafts before the verify"] == "0.100 ms"
    assert (lines["lookup"], lines["rest of a round"], lines["note"]) == ("0.010 ms", "0.200 ms", "8192 left out")
