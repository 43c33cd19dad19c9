"""A fixed cap is fixed, and never asks for drafts that could not be used."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlx_dspark.decode.cap import CapPolicy, FixedCap


@given(st.integers(0, 20), st.integers(-3, 40))
def test_a_fixed_cap_is_its_number_or_the_room(drafts: int, room: int) -> None:
    assert FixedCap(drafts).cap(room) == min(drafts, max(0, room))


def test_observing_changes_nothing() -> None:
    policy: CapPolicy = FixedCap(3)
    policy.observe(3, 0)
    assert policy == FixedCap(3)
    assert policy.cap(9) == 3
