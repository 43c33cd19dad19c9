"""Margins: the lead of the likeliest token, ties included, and DSpark's are those of its logits."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlx_dspark.models.confidence import Even, Margins
from mlx_dspark.models.drafter import DraftBlock, DraftRequest, block_of
from mlx_dspark.ops.markov import lead


@pytest.mark.parametrize("vocab", [2, 3, 7, 64, 1001])
def test_a_margin_is_top_less_second(vocab: int) -> None:
    values = np.random.default_rng(vocab).normal(size=(5, vocab)).astype(np.float32)
    found = Margins(lead(mx.array(values)))
    expected = [float(a - b) for b, a in np.sort(values, axis=1)[:, -2:]]
    assert found.read(5) == pytest.approx(expected, abs=1e-6)
    assert found.read(2) == pytest.approx(expected[:2], abs=1e-6)
    mx.eval(found.arrays())


def test_two_that_tie_have_no_margin_and_one_alone_has_any() -> None:
    assert Margins(lead(mx.array([[1.0, 3.0, 3.0, 0.0]]))).read(1) == [0.0]
    assert Margins(lead(mx.array([[1.0]]))).read(1) == [float("inf")]


def test_what_is_no_number_counts_as_unsure() -> None:
    assert Margins(mx.array([float("nan"), 2.0])).read(2) == [0.0, 2.0]


def test_one_number_for_all() -> None:
    assert Even(3.0).read(4) == [3.0] * 4
    assert Even(3.0).arrays() == []


def test_a_block_is_cut_and_read() -> None:
    block = DraftBlock(block_of([4, 5, 6], "x").tokens, "x", Even(1.0))
    assert block.cut(2).ids() == [4, 5]
    assert block.cut(0).ids() == []
    assert block.cut(9) is block
    assert [a.tolist() for a in block.arrays()] == [[4, 5, 6]]


def test_a_drafter_says_how_sure_it_is_of_each_draft(pair_of) -> None:
    drafter = pair_of("fp32").drafter
    request = DraftRequest(drafter.new_state(), 5, 0, 4, lambda logits, *_: mx.argmax(logits, axis=-1))
    (block,) = drafter.propose([request])
    margins = block.confidence.read(4)
    assert len(margins) == len(block) == 4
    assert all(m >= 0 for m in margins)
