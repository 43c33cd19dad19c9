"""Drafts stand exactly while they equal the target's picks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_dspark.decode.accept import Acceptance, accept

TOKEN = st.integers(0, 2)
ROUNDS = st.integers(0, 8).flatmap(
    lambda n: st.tuples(st.lists(TOKEN, min_size=n, max_size=n), st.lists(TOKEN, min_size=n + 1, max_size=n + 1))
)


@given(ROUNDS)
def test_length_is_the_common_prefix_and_the_next_is_the_targets(case: tuple[list[int], list[int]]) -> None:
    drafts, picks = case
    found = accept(drafts, picks)
    assert drafts[: found.length] == picks[: found.length]
    assert found.length == len(drafts) or drafts[found.length] != picks[found.length]
    assert found.next_token == picks[found.length]


@given(ROUNDS)
def test_what_is_committed_is_the_targets_own_text(case: tuple[list[int], list[int]]) -> None:
    drafts, picks = case
    found = accept(drafts, picks)
    assert [*drafts[: found.length], found.next_token] == picks[: found.length + 1]


@given(ROUNDS, TOKEN)
def test_a_longer_draft_never_shortens(case: tuple[list[int], list[int]], extra: int) -> None:
    drafts, picks = case
    before, after = accept(drafts, picks), accept([*drafts, extra], [*picks, 0])
    assert after.length >= before.length
    assert before.length == len(drafts) or after == before


def test_no_drafts_all_drafts_and_no_draft_right() -> None:
    assert accept([], [7]) == Acceptance(0, 7)
    assert accept([1, 2], [1, 2, 3]) == Acceptance(2, 3)
    assert accept([1, 2], [5, 2, 3]) == Acceptance(0, 5)


@pytest.mark.parametrize(("drafts", "picks"), [([], []), ([1], [1]), ([1], [1, 2, 3])])
def test_the_target_picks_once_more_than_was_drafted(drafts: list[int], picks: list[int]) -> None:
    with pytest.raises(AssertionError):
        accept(drafts, picks)
