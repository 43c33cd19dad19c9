"""The native walk of a block of drafts against its twin, `ops/markov.StockMarkovWalk`."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from layer_twin import native, needs_native, usable_here, using

from mlx_dspark.ops.kernels import STOCK
from mlx_dspark.ops.linear import DenseEmbedding, DenseLinear
from mlx_dspark.ops.native import NativeKernels, NativeLinear, NativeMarkovWalk

pytestmark = needs_native


def parts(vocab: int, rank: int, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    keys = mx.random.split(mx.random.key(vocab), 2)
    return tuple(mx.random.normal((vocab, rank), key=k).astype(dtype) for k in keys)  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "vocab", "rank"), [(1, 1, 1), (7, 19, 5), (3, 300, 64), (7, 4096, 64), (2, 37, 130)])
def test_the_twins_drafts_and_leads(rows: int, vocab: int, rank: int, dtype: mx.Dtype) -> None:
    markov_in, markov_out = parts(vocab, rank, dtype)
    twin = STOCK.markov(DenseEmbedding(markov_in), DenseLinear(markov_out.astype(mx.float32)), mx.float32)
    for seed in range(20):
        logits = mx.random.normal((rows, vocab), key=mx.random.key(seed)) * 8
        expected, leads = twin(logits, seed % vocab, None)
        for simd in filter(usable_here, native.features()["simd_built"]):
            with using(simd, 1 + seed % 3):
                found, margins = native.markov_walk(logits, seed % vocab, markov_in, markov_out)
                assert found.dtype == mx.int32
                assert found.tolist() == expected.tolist()
                np.testing.assert_allclose(margins, leads, atol=2e-4)


def test_the_first_of_equals_and_numbers_that_are_none() -> None:
    zeros = mx.zeros((40, 3))
    logits = np.zeros((4, 40), np.float32)
    logits[0, [17, 30]] = 5
    logits[1] = np.nan
    logits[2, :] = -np.inf
    logits[3, 39] = np.inf
    found, margins = (a.tolist() for a in native.markov_walk(mx.array(logits), 3, zeros, zeros))
    assert (found[0], found[2], found[3]) == (17, 0, 39)
    assert 0 <= found[1] < 40
    assert margins[0] == 0
    assert margins[3] == np.inf


def test_only_a_greedy_walk_over_dense_tables_is_native() -> None:
    markov_in, markov_out = parts(50, 64, mx.float32)
    kernels = NativeKernels(native)
    embedding = kernels.embedding(markov_in)
    walk = kernels.markov(embedding, kernels.linear(markov_out), mx.float32)
    assert isinstance(walk, NativeMarkovWalk)
    logits = mx.random.normal((4, 50))
    seen = []

    def second(row: mx.array, index: int, before: mx.array | None) -> mx.array:
        seen.append((index, 0 if before is None else before.shape[0]))
        return mx.argsort(row, axis=-1)[:, -2]

    twin = STOCK.markov(embedding, DenseLinear(markov_out), mx.float32)
    assert walk(logits, 1, second)[0].tolist() == twin(logits, 1, second)[0].tolist()
    assert seen[:4] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    packed = kernels.linear(markov_out, bias=mx.zeros(50))
    assert isinstance(packed, NativeLinear)
    assert not isinstance(kernels.markov(embedding, packed, mx.float32), NativeMarkovWalk)


def test_bad_inputs_are_refused_in_words() -> None:
    table, logits = mx.zeros((9, 4)), mx.zeros((2, 9))
    for arguments, words in (
        ((mx.zeros((2, 8)), 0, table, table), "markov_in must be"),
        ((logits, 0, table, mx.zeros((9, 5))), "markov_out must be"),
        ((logits, 9, table, table), r"first must be in \[0, 9\), is 9"),
        ((logits.astype(mx.bfloat16), 0, table, table), "logits must be float32"),
    ):
        with pytest.raises(ValueError, match=words):
            native.markov_walk(*arguments)
