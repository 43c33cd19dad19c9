"""What `load` decides by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlx_dspark import Pair
from mlx_dspark.engine import load
from mlx_dspark.models.dspark import DSpark


@pytest.mark.parametrize(("cpu", "hidden", "bits"), [(True, 256, 0), (True, 2688, 4), (False, 256, 4)])
def test_a_drafter_is_packed_where_reading_it_costs(
    demo: Pair, monkeypatch: pytest.MonkeyPatch, cpu: bool, hidden: int, bits: int
) -> None:
    assert isinstance(demo.drafter, DSpark)
    monkeypatch.setattr(load, "on_cpu", lambda: cpu)
    assert load._drafter_bits(replace(demo.drafter.config, hidden_size=hidden)) == bits
