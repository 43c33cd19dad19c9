"""The pick follows the request's distribution, and a row's pick does not depend on its company."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from scripted import Scripted

from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.decode.round import run_round
from mlx_dspark.decode.sampling import Sampler, noise_key
from mlx_dspark.engine.settings import GenerateOptions
from mlx_dspark.errors import ConfigError, OptionError

LOGITS = np.random.default_rng(0).normal(0, 1.5, 12).astype(np.float32)
CASES = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 0.9, "min_p": 0.2},
    {"temperature": 1.1, "top_k": 8, "top_p": 0.9, "min_p": 0.05},
]


def enumerated(case: dict) -> np.ndarray:
    """The filtered distribution in float64, straight from the definitions."""
    z = LOGITS.astype(np.float64) / case["temperature"]
    keep = np.ones(12, bool)
    if case.get("top_k"):
        keep[np.argsort(-z, kind="stable")[case["top_k"] :]] = False
    p = np.where(keep, np.exp(z), 0)
    p /= p.sum()
    if case.get("top_p"):
        order = np.argsort(-p, kind="stable")
        keep[order[np.cumsum(p[order]) - p[order] >= case["top_p"]]] = False
    p = np.where(keep, p, 0)
    if case.get("min_p"):
        p = np.where(p >= case["min_p"] * p.max(), p, 0)
    return p / p.sum()


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    expected = counts.sum() * p
    assert counts[p == 0].sum() == 0
    return float((((counts - expected) ** 2)[p > 0] / expected[p > 0]).sum())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_picks_follow_the_distribution(case: dict) -> None:
    sampler = Sampler(SamplingParams(seed=3, **case), [], 12)
    rows = mx.broadcast_to(mx.array(LOGITS), (50, 12))
    picks = np.concatenate([np.array(sampler.pick(rows, 50 * i, None)) for i in range(60)])
    assert chi_square(np.bincount(picks, minlength=12), enumerated(case)) < 31.3  # 11 degrees of freedom, p = 0.001


def test_a_row_is_picked_alike_alone_and_in_company() -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=4, frequency_penalty=0.7, repetition_penalty=1.3)
    rows = mx.random.normal((8, 12), key=mx.random.key(1)) * 2
    drafts = mx.array([3, 3, 5, 1, 0, 3, 2], mx.int32)
    block = Sampler(params, [1, 2], 12).pick(rows, 20, drafts).tolist()
    alone = Sampler(params, [1, 2], 12)
    for i in range(8):
        assert alone.pick(rows[i : i + 1], 20 + i, None).tolist() == [block[i]]
        if i < 7:
            alone.commit([int(drafts[i])])


def test_keys_differ_by_seed_and_position() -> None:
    keys = {tuple(noise_key(s, p).tolist()) for s in range(20) for p in range(200)}
    assert len(keys) == 4000


def test_penalties_and_bias_by_the_formula() -> None:
    params = SamplingParams(
        temperature=0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        repetition_penalty=2.0,
        logit_bias={4: 1.0, 7: -100},
    )
    sampler = Sampler(params, [0, 1], 12)
    sampler.commit([2, 2, 3])
    row = LOGITS.astype(np.float64).copy()
    row[4] += 1.0
    row[7] -= 100
    for token in (0, 1, 2, 3, 5):
        row[token] = row[token] / 2 if row[token] > 0 else row[token] * 2
    for token, count in ((2, 2), (3, 1), (5, 1)):
        row[token] -= 0.5 + 0.25 * count
    got = sampler.pick(mx.array(np.stack([LOGITS, LOGITS])), 9, mx.array([5], mx.int32)).tolist()
    assert got[1] == int(row.argmax())


@pytest.mark.slow
@pytest.mark.parametrize("script", ["good", "bad", "peaked"])
def test_drafted_samples_follow_the_targets_distribution(pair_of, script: str) -> None:
    """The first two tokens over many seeds, drafting on, against the softmax of the target's own logits."""
    pair = pair_of("fp32")
    ids = pair.prompt_ids("ab", GenerateOptions(chat_template=False))
    logits = pair.target.verify(pair.target.new_state(), [mx.array(ids, mx.int32)]).logits[-1]
    top = np.argsort(-np.array(logits))[:6].tolist()
    bias = {t: -1000.0 for t in range(288) if t not in top}
    p = np.array(mx.softmax(logits[mx.array(top)]))
    scripts = {
        "good": lambda plain, at, count: [top[0]] * count,
        "bad": lambda plain, at, count: [(top[5] + 1) % 250] * count,
        "peaked": lambda plain, at, count: [top[4]] * count,
    }
    counts = np.zeros(6)
    for seed in range(1500):
        params = SamplingParams(temperature=1.0, seed=seed, logit_bias=bias)
        session = pair.session(ids, GenerateOptions(max_tokens=2), params)
        session.drafter = Scripted([], scripts[script], taps=())
        session.draft_state = session.drafter.new_state()
        session.prefill()
        counts[top.index(run_round(pair.target, [session])[0].tokens[0])] += 1
    assert chi_square(counts, p) < 20.5  # 5 degrees of freedom, p = 0.001


def test_request_beats_checkpoint_beats_greedy() -> None:
    defaults = {"temperature": 1.0, "top_p": 0.95}
    assert SamplingParams().greedy
    merged = SamplingParams(top_p=0.5).with_defaults(defaults)
    assert (merged.temperature, merged.top_p) == (1.0, 0.5)
    assert SamplingParams(temperature=0).with_defaults(defaults).greedy
    with pytest.raises(ConfigError, match="temperature"):
        SamplingParams().with_defaults({"temperature": -1})


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}, {"top_k": -1}, {"top_k": 2.5},
                                 {"seed": -1}, {"temperature": float("nan")}, {"frequency_penalty": 3}])  # fmt: skip
def test_values_outside_the_limits_are_refused(bad: dict) -> None:
    with pytest.raises(OptionError, match="--"):
        SamplingParams(**bad)
