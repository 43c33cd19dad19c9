"""A fixed cap is fixed, and never asks for drafts that could not be used."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlx_dspark.decode.cap import CapPolicy, Choice, FixedCap, Moment, Outcome
from mlx_dspark.models.drafter import block_of


@given(st.integers(0, 20), st.integers(-3, 40))
def test_a_fixed_cap_is_its_number_or_the_room(drafts: int, room: int) -> None:
    assert FixedCap(drafts).ask(Moment(room, 9)) == min(drafts, max(0, room))


def test_observing_changes_nothing() -> None:
    policy: CapPolicy = FixedCap(3)
    policy.observe(Outcome(3, [1], 0.1))
    assert policy.ask(Moment(9, 5)) == 3


def test_a_fixed_cap_verifies_all_it_gets_and_lets_the_first_block_win() -> None:
    policy: CapPolicy = FixedCap(3)
    policy.ask(Moment(9, 5))
    nothing, block = block_of([], "a"), block_of([1, 2], "b")
    assert (policy.wanted("a", nothing), policy.wanted("b", block)) == (3, 0)
    assert policy.better(block, nothing) is block
    assert policy.better(block_of([4], "c"), block) is block
    assert policy.trim(block) is block
    assert policy.choice == Choice(3, 2, 0.0, "pinned")
