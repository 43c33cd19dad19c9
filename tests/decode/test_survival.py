"""Estimates of survival: start at the prior, follow the evidence, forget it, and pass on what all sequences share."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_dspark.decode.priors import PRIORS, UNKNOWN, prior_of
from mlx_dspark.decode.survival import Experience, Prior, Survival, sigmoid

PRIOR = Prior((0.0, 2.0, 4.0), (-1.0, 1.0, 3.0), (0.0, 0.5), (0.2, 0.4), 1.0)


def test_the_prior_is_read_by_straight_lines_and_flat_beyond() -> None:
    assert [PRIOR.of(0, m) for m in (0.0, 1.0, 2.0, 3.0, 9.0)] == [-1.0, 0.0, 1.0, 2.0, 3.0]
    assert [PRIOR.of(i, 2.0) for i in (0, 1, 5)] == [1.0, 1.5, 1.5]
    assert [PRIOR.of(i, None) for i in (0, 1, 5)] == [0.2, 0.4, 0.4]
    assert PRIOR.of(0, -1.0) == -1.0


@given(st.lists(st.tuples(st.integers(0, 6), st.floats(-8, 8), st.booleans()), max_size=60))
def test_chances_stay_chances_whatever_happens(evidence: list[tuple[int, float, bool]]) -> None:
    survival = Survival(Experience(PRIOR))
    for item in evidence:
        survival.learn([item])
    assert all(0 < c < 1 for c in survival.chances(survival.odds([0.0, None, 9.0, 1e9])))


def test_nothing_seen_leaves_the_prior() -> None:
    survival = Survival(Experience(PRIOR))
    odds = survival.odds([2.0, None])
    assert survival.chances(odds) == [sigmoid(1.0), sigmoid(0.4)]


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.95])
def test_it_finds_the_rate_of_a_sequence(rate: float) -> None:
    random, survival = np.random.default_rng(1), Survival(Experience(PRIOR))
    found = []
    for _ in range(400):
        (odds,) = survival.odds([2.0])
        found.append(survival.chances([odds])[0])
        survival.learn([(0, odds, bool(random.random() < rate))])
    assert np.mean(found[100:]) == pytest.approx(rate, abs=0.05)


def test_positions_are_told_apart() -> None:
    survival = Survival(Experience(PRIOR))
    for _ in range(60):
        odds = survival.odds([2.0, 2.0])
        survival.learn([(0, odds[0], True), (1, odds[1], False)])
    first, second = survival.chances(survival.odds([2.0, 2.0]))
    assert first > 0.85
    assert second < 0.15


def test_what_one_sequence_shows_helps_the_next_a_little() -> None:
    experience = Experience(PRIOR)
    first = Survival(experience)
    for _ in range(30):
        first.learn([(0, 1.0, False)])
    fresh, unknown = Survival(experience), Survival(Experience(PRIOR))
    assert first.chances([1.0])[0] < fresh.chances([1.0])[0] < unknown.chances([1.0])[0]


def test_a_position_not_seen_any_more_returns_to_what_all_show() -> None:
    survival = Survival(Experience(PRIOR))
    for _ in range(10):
        survival.learn([(0, 1.0, True), (1, 1.0, False)])
    before = survival.chances([1.0, 1.0])[1]
    for _ in range(150):
        survival.learn([(0, 1.0, True)])
    assert survival.chances([1.0, 1.0])[1] > before + 0.2


def test_the_shipped_priors_rise_with_the_margin() -> None:
    for prior in PRIORS.values():
        assert list(prior.knots) == sorted(prior.knots)
        assert list(prior.odds) == sorted(prior.odds)
        assert len(prior.knots) == len(prior.odds)
        assert prior.doubt > 0
    assert prior_of("another", False) is UNKNOWN


def test_sigmoid_at_the_ends() -> None:
    assert sigmoid(0) == 0.5
    assert sigmoid(-1e9) == 0.0
    assert sigmoid(1e9) == 1.0
    assert math.isclose(sigmoid(2) + sigmoid(-2), 1)
