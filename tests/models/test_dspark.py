"""The DSpark head against a float64 reference that caches nothing, over rounds of 0..7 accepted, past the window."""

from __future__ import annotations

from pathlib import Path

import build
import mlx.core as mx
import numpy as np
import pytest

from mlx_dspark.checkpoint.drafter_config import read_drafter_config
from mlx_dspark.checkpoint.weights import Weights
from mlx_dspark.errors import TensorError
from mlx_dspark.models import dspark
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
    packed = [r.pick.rows for r in requests]
    for r in requests:
        r.pick.rows = []
    assert together == [drafter.propose([r])[0].tokens.tolist() for r in requests]
    assert [len(t) for t in together] == [7, 0, 3, 5]
    for rows, request in zip(packed, requests, strict=True):
        assert len(rows) == request.count
        for a, b in zip(rows, request.pick.rows, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5, rtol=0)


def logits_of(drafter: DSpark, state: object, anchor: int, position: int, count: int) -> np.ndarray:
    pick = Recorder()
    drafter.propose([DraftRequest(state, anchor, position, count, pick)])
    return np.array(pick.rows)


def test_a_shorter_block_is_the_head_of_a_longer_one(drafter: DSpark) -> None:
    state = drafter.new_state()
    observe(drafter, state, np.random.default_rng(5).normal(size=(60, 3 * build.HIDDEN)), 0)
    full = logits_of(drafter, state, 7, 60, 7)
    for count in range(1, 8):
        np.testing.assert_allclose(logits_of(drafter, state, 7, 60, count), full[:count], atol=1e-5, rtol=0)
    assert len(logits_of(drafter, state, 7, 60, 50)) == drafter.max_draft == build.DRAFTER["block_size"] - 1


def test_the_window_has_exactly_its_rows(drafter: DSpark) -> None:
    """The anchor at 60 sees keys 60 - WINDOW + 1 .. 60: the row before is invisible, the first one is not."""
    rows = np.random.default_rng(6).normal(size=(60, 3 * build.HIDDEN))

    def after(changed: int | None) -> np.ndarray:
        state, history = drafter.new_state(), rows.copy()
        if changed is not None:
            history[changed] = np.random.default_rng(7).normal(size=3 * build.HIDDEN) * 3
        for begin in range(0, 60, 20):
            observe(drafter, state, history[begin : begin + 20], begin)
        return logits_of(drafter, state, 7, 60, 7)

    full, first = after(None), 60 - WINDOW + 1
    np.testing.assert_array_equal(after(first - 1), full)
    # Slot 0 is the only one that sees the first row; later slots hear of it through their own attention to slot 0.
    assert np.abs(after(first) - full)[0].max() > 1e-4
    assert np.abs(after(59) - full)[-1].max() > 1e-4


@pytest.mark.parametrize("given", [0, 1, 10, 23, 24, 39, 40])
def test_fewer_tap_rows_belong_to_the_last_tokens(drafter: DSpark, given: int) -> None:
    rng = np.random.default_rng(given)
    rows, more = rng.normal(size=(40, 3 * build.HIDDEN)), rng.normal(size=(3, 3 * build.HIDDEN))
    whole, partial = drafter.new_state(), drafter.new_state()
    observe(drafter, whole, rows[40 - given :], 40 - given)
    parts = np.split(rows[40 - given :].astype(np.float32), 3, axis=1)
    taps = {layer: mx.array(p) for layer, p in zip((0, 2, 4), parts, strict=True)}
    drafter.observe(partial, [0] * 40, 0, taps)
    for state in (whole, partial):
        observe(drafter, state, more, 40)
        assert state.rows == min(given + 3, WINDOW - 1)
    np.testing.assert_allclose(
        logits_of(drafter, partial, 5, 43, 7), logits_of(drafter, whole, 5, 43, 7), atol=1e-5, rtol=0
    )


def test_a_span_without_taps_forgets_the_context(drafter: DSpark) -> None:
    rng, state = np.random.default_rng(8), drafter.new_state()
    observe(drafter, state, rng.normal(size=(10, 3 * build.HIDDEN)), 0)
    drafter.observe(state, [0] * 5, 10, {})
    assert state.rows == 0
    fresh = logits_of(drafter, drafter.new_state(), 5, 15, 7)
    np.testing.assert_array_equal(logits_of(drafter, state, 5, 15, 7), fresh)


@pytest.mark.parametrize("slack", [0, 1, 5, 256])
def test_any_sizes_of_spans_fit_the_buffer(drafter: DSpark, monkeypatch: pytest.MonkeyPatch, slack: int) -> None:
    """Spans longer than the slack but shorter than the window, after a full window."""
    monkeypatch.setattr(dspark, "SLACK", slack)
    rng, state, position = np.random.default_rng(slack), drafter.new_state(), 0
    rows = rng.normal(size=(250, 3 * build.HIDDEN))
    for size in (23, 10, 22, 1, 23, 15, 24, 20, 20, 8, 1, 22, 30, 12):
        observe(drafter, state, rows[position : position + size], position)
        position += size
        assert state.rows == min(position, WINDOW - 1)
        assert state.nbytes <= 2 * 2 * 2 * DIM * 4 * (WINDOW - 1 + slack)
    again = drafter.new_state()
    observe(drafter, again, rows[position - WINDOW + 1 : position], position - WINDOW + 1)
    np.testing.assert_allclose(
        logits_of(drafter, state, 5, position, 7), logits_of(drafter, again, 5, position, 7), atol=1e-5, rtol=0
    )


def test_picks_get_positions_and_what_is_pending(drafter: DSpark) -> None:
    seen: list[tuple[int, list[int] | None, object]] = []

    def pick(logits: mx.array, position: int, pending: mx.array | None) -> mx.array:
        seen.append((position, None if pending is None else pending.tolist(), (logits.shape, logits.dtype)))
        return mx.array([10 + len(seen)], mx.int32)

    (block,) = drafter.propose([DraftRequest(drafter.new_state(), 5, 100, 4, pick)])
    assert (block.tokens.tolist(), block.tokens.dtype, block.source) == ([11, 12, 13, 14], mx.int32, "dspark")
    assert [s[0] for s in seen] == [101, 102, 103, 104]
    assert [s[1] for s in seen] == [None, [11], [11, 12], [11, 12, 13]]
    assert {s[2] for s in seen} == {((1, build.VOCAB), mx.float32)}


def test_half_precision_heads_take_taps_of_any_dtype(tmp_path: Path) -> None:
    folder = build.write_drafter(tmp_path / "drafter")
    head = DenseLinear(mx.array(HEAD).astype(mx.bfloat16))
    drafter = DSpark.load(read_drafter_config(folder), Weights(folder, None), head)
    state = drafter.new_state()
    observe(drafter, state, np.random.default_rng(1).normal(size=(30, 3 * build.HIDDEN)), 0)
    assert state.context.dtype == drafter.dtype == mx.bfloat16
    assert np.isfinite(logits_of(drafter, state, 5, 30, 7)).all()


def test_a_confidence_head_is_ignored_only_if_the_config_has_one(tmp_path: Path) -> None:
    for announced in (True, False):
        folder = build.write_drafter(tmp_path / str(announced), enable_confidence_head=announced)
        arrays = {k: mx.array(v) for k, v in build.drafter_arrays().items()}
        arrays["confidence_head.proj.weight"] = mx.zeros((1, build.HIDDEN))
        mx.save_safetensors(str(folder / "model.safetensors"), arrays)
        config, weights, head = read_drafter_config(folder), Weights(folder, None), DenseLinear(mx.array(HEAD))
        if announced:
            DSpark.load(config, weights, head)
            assert weights.ignored == ["confidence_head.proj.weight"]
        else:
            with pytest.raises(TensorError, match="confidence_head"):
                DSpark.load(config, weights, head)


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
