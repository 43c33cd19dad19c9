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
from mlx_dspark.errors import OptionError

LOGITS = np.random.default_rng(0).normal(0, 1.5, 12).astype(np.float32)
CASES = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 0.9, "min_p": 0.2},
    {"temperature": 1.1, "top_k": 8, "top_p": 0.9, "min_p": 0.05},
]
PENALTIES = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.7,
    "logit_bias": {4: 1.0, 7: -100.0},
}


def enumerated(case: dict, logits: np.ndarray = LOGITS, prompt: tuple = (), generated: tuple = ()) -> np.ndarray:
    """The filtered distribution in float64, straight from the definitions."""
    z = logits.astype(np.float64)
    for token, bias in case.get("logit_bias", {}).items():
        z[token] += bias
    for token in {*prompt, *generated}:
        z[token] = z[token] / case.get("repetition_penalty", 1) if z[token] > 0 else z[token] * case.get("repetition_penalty", 1)  # fmt: skip
    for token in set(generated):
        z[token] -= case.get("presence_penalty", 0) + case.get("frequency_penalty", 0) * generated.count(token)
    z /= case["temperature"]
    keep = np.ones(len(z), bool)
    if case.get("top_k"):
        keep[np.argsort(-z, kind="stable")[case["top_k"] :]] = False
    p = np.where(keep, np.exp(z - z.max()), 0)
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


def many(sampler: Sampler, logits: np.ndarray, count: int = 3000) -> np.ndarray:
    """Picks from the same logits at `count` positions, without history."""
    rows = mx.broadcast_to(mx.array(logits), (50, len(logits)))
    return np.concatenate([np.array(sampler.pick(rows, 50 * i, None)) for i in range(count // 50)])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_picks_follow_the_distribution(case: dict) -> None:
    picks = many(Sampler(SamplingParams(seed=3, **case), [], 12), LOGITS)
    assert chi_square(np.bincount(picks, minlength=12), enumerated(case)) < 31.3  # 11 degrees of freedom, p = 0.001


def test_penalised_picks_follow_the_distribution() -> None:
    case = {"temperature": 1.2, "top_p": 0.97, **PENALTIES, "logit_bias": {4: 1.0, 7: -3.0}}
    sampler = Sampler(SamplingParams(seed=8, **case), [0, 1], 12)
    sampler.commit([2, 2, 3])
    counts = np.bincount(many(sampler, LOGITS), minlength=12)
    assert chi_square(counts, enumerated(case, prompt=(0, 1), generated=(2, 2, 3))) < 31.3


def test_successive_picks_are_independent() -> None:
    """Pairs of neighbours against the product of the distribution: no echo from one position to the next."""
    p = np.array([0.5, 0.3, 0.2])
    picks = many(Sampler(SamplingParams(temperature=1, seed=12), [], 3), np.log(p).astype(np.float32))
    pairs = np.bincount(picks[:-1:2] * 3 + picks[1::2], minlength=9)
    assert chi_square(pairs, np.outer(p, p).ravel()) < 26.1  # 8 degrees of freedom, p = 0.001


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("case", [{"temperature": 0}, *CASES, {**CASES[-1], **PENALTIES}], ids=str)
def test_a_rows_pick_is_the_same_in_any_grouping(case: dict, dtype: mx.Dtype) -> None:
    vocab, count = 1000, 9
    rows = (mx.random.normal((count, vocab), key=mx.random.key(5)) * 2).astype(dtype)
    drafts = mx.array([3, 3, 5, 900, 0, 3, 2, 5], mx.int32)
    sampler = Sampler(SamplingParams(seed=4, **case), [1, 2], vocab)
    whole = sampler.pick(rows, 70, drafts)
    assert whole.shape == (count,)
    assert whole.dtype == mx.int32
    for width in (1, 2, 4, 5):
        parts = [
            sampler.pick(rows[i : i + width], 70 + i, drafts[: min(i + width, count) - 1] if i + width > 1 else None)
            for i in range(0, count, width)
        ]
        assert mx.array_equal(mx.concatenate(parts), whole)


def processed(sampler: Sampler, logits: mx.array, pending: mx.array | None) -> list[mx.array]:
    """The rows as they are before the noise."""
    seen: list[mx.array] = []
    sampler._choose = lambda row, position: (seen.append(row), mx.argmax(row))[1]
    sampler.pick(logits, 10, pending)
    return seen


@pytest.mark.parametrize("case", CASES, ids=str)
def test_filtered_rows_have_the_same_bits_in_any_company(case: dict) -> None:
    sampler = Sampler(SamplingParams(seed=4, **case, **PENALTIES), [1, 2], 1000)
    rows = mx.random.normal((5, 1000), key=mx.random.key(6)) * 3
    drafts = mx.array([9, 9, 1, 4], mx.int32)
    for r, row in enumerate(processed(sampler, rows, drafts)):
        assert mx.array_equal(processed(sampler, rows[r : r + 1], drafts[:r] if r else None)[0], row)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("extras", [{}, PENALTIES], ids=["bare", "penalised"])
def test_every_rows_distribution_is_the_reference(case: dict, extras: dict) -> None:
    sampler = Sampler(SamplingParams(seed=1, **case, **extras), [0, 1], 12)
    sampler.commit([2, 2, 3])
    drafts = [5, 5, 0, 2]
    logits = np.random.default_rng(7).normal(0, 2, (5, 12)).astype(np.float32)
    for r, row in enumerate(processed(sampler, mx.array(logits), mx.array(drafts, mx.int32))):
        wanted = enumerated({**case, **extras}, logits[r], (0, 1), (2, 2, 3, *drafts[:r]))
        np.testing.assert_allclose(np.array(mx.softmax(row)), wanted, rtol=1e-4, atol=1e-7)


def test_a_row_is_picked_alike_with_drafts_pending_and_committed() -> None:
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=4, **PENALTIES)
    rows = mx.random.normal((8, 12), key=mx.random.key(1)) * 2
    drafts = [3, 3, 5, 1, 0, 3, 2]
    block = Sampler(params, [1, 2], 12).pick(rows, 20, mx.array(drafts, mx.int32)).tolist()
    alone = Sampler(params, [1, 2], 12)
    for i in range(8):
        assert alone.pick(rows[i : i + 1], 20 + i, None).tolist() == [block[i]]
        alone.commit(drafts[i : i + 1])


def test_seed_and_position_alone_decide_the_noise() -> None:
    logits = np.zeros(500, np.float32)
    first, again, other = (
        many(Sampler(SamplingParams(temperature=1, seed=s), [], 500), logits, 200) for s in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).mean() > 0.95
    assert len(set(first.tolist())) > 130  # 165 are expected of 200 draws among 500
    keys = {tuple(noise_key(s, p).tolist()) for s in (0, 1, 2, 3, 2**63 - 1) for p in range(400)}
    assert len(keys) == 2000


def test_nothing_waits_for_the_device() -> None:
    """Under mx.compile arrays are placeholders: reading a value would raise."""
    sampler = Sampler(SamplingParams(seed=1, **CASES[-1], **PENALTIES), [1], 12)
    logits, pending = mx.array(np.stack([LOGITS] * 3)), mx.array([4, 5], mx.int32)
    with pytest.raises(ValueError, match="eval"):
        mx.compile(lambda x: mx.array(x.sum().item()))(logits)
    compiled = mx.compile(lambda x, before: sampler.pick(x, 3, before))(logits, pending)
    assert compiled.tolist() == sampler.pick(logits, 3, pending).tolist()


def test_penalties_and_bias_by_the_formula() -> None:
    case = {"temperature": 1e-3, **PENALTIES}
    for greedy in (True, False):
        params = SamplingParams(**{**case, "temperature": 0 if greedy else 1e-3}, seed=1)
        for trial in range(30):
            logits = np.random.default_rng(trial).normal(0, 2, 12).astype(np.float32)
            sampler = Sampler(params, [0, 1], 12)
            sampler.commit([2, 2, 3])
            wanted = enumerated({**case, "temperature": 1}, logits, (0, 1), (2, 2, 3, 5, 5))
            got = sampler.pick(mx.array(np.stack([logits, logits, logits])), 9, mx.array([5, 5], mx.int32)).tolist()
            assert got[2] == int(wanted.argmax())


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_a_bias_of_minus_100_bans(temperature: float) -> None:
    best = int(LOGITS.argmax())
    sampler = Sampler(SamplingParams(temperature=temperature, seed=2, logit_bias={best: -100}), [], 12)
    assert best not in many(sampler, LOGITS)


def test_a_bias_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(OptionError, match="12, but the model's last is 11"):
        Sampler(SamplingParams(logit_bias={12: 1.0}), [], 12)


@pytest.mark.parametrize("case", [{"top_k": 4}, {"top_p": 0.6}], ids=str)
def test_ties_at_the_border_go_to_the_lower_ids(case: dict) -> None:
    """One likelier, then six equals, of which either filter keeps three."""
    logits = mx.array([0.0, -9, 0, 0, -9, 0, 1, 0, 0, -9])
    (row,) = processed(Sampler(SamplingParams(temperature=1, seed=6, **case), [], 10), logits[None], None)
    assert np.flatnonzero(np.isfinite(np.array(row))).tolist() == [0, 2, 3, 6]


@pytest.mark.parametrize("case", [{"temperature": 1, "top_k": 1}, {"temperature": 1, "top_p": 1e-300}, {"temperature": 1, "min_p": 1},
                                  {"temperature": 1e-300}, {"temperature": 1e-38, "top_p": 0.5, "min_p": 0.5}], ids=str)  # fmt: skip
def test_the_narrowest_settings_leave_the_likeliest(case: dict) -> None:
    assert set(many(Sampler(SamplingParams(seed=1, **case), [], 12), LOGITS, 200).tolist()) == {int(LOGITS.argmax())}


def test_greedy_without_extras_is_the_argmax() -> None:
    rows = mx.random.normal((6, 300), key=mx.random.key(3)).astype(mx.bfloat16)
    picks = Sampler(SamplingParams(temperature=0, top_k=2, top_p=0.1), [5], 300).pick(rows, 1, None)
    assert picks.dtype == mx.int32
    assert mx.array_equal(picks, mx.argmax(rows, axis=-1))


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
