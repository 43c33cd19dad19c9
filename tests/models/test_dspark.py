"""The DSpark head against a float64 reference that caches nothing, over rounds of 0..7 accepted, past the window."""

from __future__ import annotations

from pathlib import Path

import build
import mlx.core as mx
import numpy as np
import pytest

from mlx_dspark.checkpoint.drafter_config import read_drafter_config
from mlx_dspark.checkpoint.weights import Weights
from mlx_dspark.models.drafter import DraftRequest
from mlx_dspark.models.dspark import DSpark
from mlx_dspark.ops.linear import DenseLinear

W = {k: v.astype(np.float64) for k, v in build.drafter_arrays().items()}
HEAD = np.random.default_rng(9).normal(0, 0.3, (build.VOCAB, build.HIDDEN)).astype(np.float32)
WINDOW, EPS, DIM = 24, 1e-6, 16


def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def rope(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    half = DIM // 2
    angle = positions[:, None, None] * 10000.0 ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def base_logits(taps: np.ndarray, anchor: int, count: int) -> np.ndarray:
    """[count, V] from the whole tap history [n, 3H], nothing cached."""
    n = len(taps)
    context = rms(taps @ W["fc.weight"].T, W["hidden_norm.weight"])
    x = W["embed_tokens.weight"][[anchor] + [3] * count]
    places = np.arange(n + count + 1)
    seen = (places[None] <= places[n:, None]) & (places[None] > places[n:, None] - WINDOW)
    for i in range(2):
        w = {k.removeprefix(f"layers.{i}."): v for k, v in W.items() if k.startswith(f"layers.{i}.")}
        h = rms(x, w["input_layernorm.weight"])
        both = np.concatenate([context, h])
        q = (h @ w["self_attn.q_proj.weight"].T).reshape(-1, 4, DIM)
        k = (both @ w["self_attn.k_proj.weight"].T).reshape(-1, 2, DIM)
        v = (both @ w["self_attn.v_proj.weight"].T).reshape(-1, 2, DIM)
        q = rope(rms(q, w["self_attn.q_norm.weight"]), places[n:])
        k = rope(rms(k, w["self_attn.k_norm.weight"]), places)
        out = np.zeros_like(q)
        for head in range(4):
            scores = np.where(seen, q[:, head] @ k[:, head // 2].T * DIM**-0.5, -np.inf)
            e = np.exp(scores)
            total = e.sum(-1, keepdims=True) + np.exp(w["self_attn.attention_sink_bias"][head])
            out[:, head] = e / total @ v[:, head // 2]
        x = x + out.reshape(count + 1, -1) @ w["self_attn.o_proj.weight"].T
        h = rms(x, w["post_attention_layernorm.weight"])
        gate = h @ w["mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
    return rms(x, W["norm.weight"])[1:] @ HEAD.astype(np.float64).T


class Recorder:
    """A greedy pick that remembers the logits it was shown."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []

    def __call__(self, logits: mx.array, position: int, pending: mx.array | None) -> mx.array:
        self.rows.append(np.array(logits[0]))
        return mx.argmax(logits, axis=-1)


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> DSpark:
    folder = build.write_drafter(tmp_path_factory.mktemp("drafter"), mx.float32)
    return DSpark.load(read_drafter_config(folder), Weights(folder, None, mx.float32), DenseLinear(mx.array(HEAD)))


def observe(drafter: DSpark, state: object, rows: np.ndarray, position: int) -> None:
    parts = np.split(rows.astype(np.float32), 3, axis=1)
    taps = {layer: mx.array(p) for layer, p in zip((0, 2, 4), parts, strict=True)}
    drafter.observe(state, [0] * len(rows), position, taps)


@pytest.mark.parametrize("prompt", [0, 1, 5, 23, 24, 40, 90])
def test_rounds_equal_the_reference(drafter: DSpark, prompt: int) -> None:
    rng = np.random.default_rng(prompt)
    state, history = drafter.new_state(), np.zeros((0, 3 * build.HIDDEN))
    for new in [prompt, 4, 1, 1, 8, 2, 3, 1, 6, 8, 5, 7, 1]:
        if new:
            rows = rng.normal(size=(new, 3 * build.HIDDEN)).astype(np.float32).astype(np.float64)
            observe(drafter, state, rows, len(history))
            history = np.concatenate([history, rows])
        anchor, count, pick = int(rng.integers(0, 250)), int(rng.integers(1, 8)), Recorder()
        (block,) = drafter.propose([DraftRequest(state, anchor, len(history), count, pick)])
        drafts = np.array(block.tokens)
        assert len(drafts) == count
        expected, previous = base_logits(history, anchor, count), anchor
        for i in range(count):
            row = expected[i] + W["markov_head.markov_w2.weight"] @ W["markov_head.markov_w1.weight"][previous]
            assert np.abs(row - pick.rows[i]).max() < 1e-4
            assert drafts[i] == np.argmax(row)
            previous = int(drafts[i])


def test_a_batch_equals_its_solo_requests(drafter: DSpark) -> None:
    rng, requests = np.random.default_rng(3), []
    for n, count in ((5, 7), (30, 0), (40, 3), (2, 5)):
        state = drafter.new_state()
        observe(drafter, state, rng.normal(size=(n, 3 * build.HIDDEN)), 0)
        requests.append(DraftRequest(state, n, n, count, Recorder()))
    together = [b.tokens.tolist() for b in drafter.propose(requests)]
    assert together == [drafter.propose([r])[0].tokens.tolist() for r in requests]
    assert [len(t) for t in together] == [7, 0, 3, 5]


def test_context_after_a_gap_starts_afresh_and_memory_is_bounded(drafter: DSpark) -> None:
    rng, state = np.random.default_rng(4), drafter.new_state()
    observe(drafter, state, rng.normal(size=(10, 3 * build.HIDDEN)), 0)
    observe(drafter, state, rng.normal(size=(4, 3 * build.HIDDEN)), 50)
    assert state.rows == 4
    for position in range(54, 900, 3):
        observe(drafter, state, rng.normal(size=(3, 3 * build.HIDDEN)), position)
    assert state.rows == WINDOW - 1
    assert state.nbytes <= 2 * 2 * 2 * DIM * 4 * (WINDOW + 256)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantised_head_still_drafts(tmp_path: Path, bits: int) -> None:
    folder = build.write_drafter(tmp_path / "drafter")
    drafter = DSpark.load(
        read_drafter_config(folder), Weights(folder, None), DenseLinear(mx.array(HEAD).astype(mx.bfloat16)), bits
    )
    state = drafter.new_state()
    (block,) = drafter.propose([DraftRequest(state, 4, 0, 7, Recorder())])
    assert len(block) == 7
