"""Defaults that belong to a pair: the registry says whether lookup drafts, a flag overrules it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlx_dspark import load
from mlx_dspark.checkpoint.registry import KNOWN_PAIRS


@pytest.mark.parametrize(
    ("registry", "settings", "drafter"),
    [
        (False, {}, "dspark"),
        (True, {}, "lookup+dspark"),
        (True, {"lookup_drafts": False}, "dspark"),
        (False, {"lookup_drafts": True}, "lookup+dspark"),
        (True, {"mode": "baseline"}, "baseline"),
        (False, {"mode": "lookup"}, "lookup"),
    ],
)
def test_lookup_drafts_by_default_as_the_registry_says(
    registry: bool, settings: dict[str, object], drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tuple(replace(pair, lookup_drafts=registry) for pair in KNOWN_PAIRS)
    monkeypatch.setattr("mlx_dspark.checkpoint.registry.KNOWN_PAIRS", known)
    assert load(calibrate=False, **settings).drafter.name == drafter
