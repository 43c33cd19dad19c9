"""The native router."""

from __future__ import annotations

import layer_twin as twin
import mlx.core as mx
import numpy as np
import pytest
from layer_twin import DTYPES, assert_same_bits, in_every_setting, native, wide

from mlx_dspark.ops.moe import Routing
from mlx_dspark.ops.moe import route as stock_route

pytestmark = twin.needs_native


def inputs(rows: int, experts: int, size: int, dtype: mx.Dtype = mx.float32) -> tuple[mx.array, mx.array, mx.array]:
    a, b, c = mx.random.split(mx.random.key(0), 3)
    x = mx.random.normal((rows, size), key=a).astype(dtype)
    return x, mx.random.normal((experts, size), key=b) / size**0.5, mx.random.normal((experts,), key=c) * 0.2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("experts", "size", "top", "groups", "top_groups"),
    [(16, 512, 4, 1, 1), (128, 2688, 6, 1, 1), (5, 33, 2, 1, 1), (1, 7, 1, 1, 1), (64, 100, 8, 8, 3), (24, 40, 24, 4, 2), (6, 8, 3, 3, 3)],
)  # fmt: skip
@pytest.mark.parametrize("normalize", [True, False])
def test_matches_float64(
    experts: int, size: int, top: int, groups: int, top_groups: int, normalize: bool, dtype: mx.Dtype
) -> None:
    x, gate, correction = inputs(9, experts, size, dtype)
    options = {"top": top, "scale": 2.5, "normalize": normalize, "groups": groups, "top_groups": top_groups}
    ids, weights = in_every_setting(lambda: native.route(x, gate, correction, **options))
    expected_ids, expected = twin.route(wide(x), wide(gate), wide(correction), *options.values())
    assert (ids.dtype, weights.dtype) == (mx.uint32, mx.float32)
    np.testing.assert_array_equal(np.array(ids), expected_ids)
    np.testing.assert_allclose(np.array(weights), expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(("groups", "top_groups"), [(1, 1), (4, 2)])
def test_chooses_what_the_stock_operations_choose(groups: int, top_groups: int) -> None:
    x, gate, correction = inputs(40, 32, 256)
    stock_ids, stock = stock_route(x, gate, correction, Routing(5, 2.5, True, groups, top_groups))
    ids, weights = native.route(x, gate, correction, top=5, scale=2.5, groups=groups, top_groups=top_groups)
    order = mx.argsort(ids, axis=1), mx.argsort(stock_ids, axis=1)
    np.testing.assert_array_equal(
        mx.take_along_axis(ids, order[0], axis=1), mx.take_along_axis(stock_ids.astype(mx.uint32), order[1], axis=1)
    )
    np.testing.assert_allclose(
        mx.take_along_axis(weights, order[0], axis=1), mx.take_along_axis(stock, order[1], axis=1), rtol=2e-6
    )


def test_rows_do_not_depend_on_each_other() -> None:
    x, gate, correction = inputs(64, 128, 515)
    ids, weights = in_every_setting(lambda: native.route(x, gate, correction, top=6))
    for count in range(1, 64):
        for part, at in ((x[:count], slice(count)), (x[-count:], slice(64 - count, 64))):
            some_ids, some = native.route(part, gate, correction, top=6)
            assert_same_bits(some_ids, ids[at])
            assert_same_bits(some, weights[at])
    x[5, 3] = float("nan")
    bad_ids, bad = native.route(x, gate, correction, top=6)
    np.testing.assert_array_equal(np.array(bad_ids[5]), range(6))
    assert np.isnan(np.array(bad[5])).all()
    bad_ids[5], bad[5] = ids[5], weights[5]
    assert_same_bits(bad_ids, ids)
    assert_same_bits(bad, weights)


def test_ties_go_to_the_lower_index() -> None:
    x, gate = mx.ones((1, 8)), mx.zeros((6, 8))
    ids, weights = native.route(x, gate, mx.array([0.0, 1, 0, 1, 1, 0]), top=4)
    np.testing.assert_array_equal(ids, [[1, 3, 4, 0]])
    np.testing.assert_allclose(weights, [[0.25] * 4])
    ids, _ = native.route(x, gate, mx.zeros(6), top=2, groups=3, top_groups=1)
    np.testing.assert_array_equal(ids, [[0, 1]])


def test_experts_outside_the_best_groups_rank_at_zero() -> None:
    """A kept expert below zero comes after the dropped ones."""
    x, gate = mx.ones((1, 8)), mx.zeros((4, 8))
    ids, weights = native.route(x, gate, mx.array([1.0, -2, 0.1, 0.1]), top=3, groups=2, top_groups=1, normalize=False)
    np.testing.assert_array_equal(ids, [[2, 3, 0]])
    np.testing.assert_array_equal(weights, [[0.5, 0.5, 0.5]])


def test_views_are_read_as_they_are() -> None:
    x, gate, correction = inputs(8, 16, 64)
    plain = native.route(x, gate, correction, top=3)
    views = native.route(mx.array(x.T).T, mx.array(gate.T).T, mx.stack([correction] * 2, 1)[:, 1], top=3)
    for a, b in zip(views, plain, strict=True):
        assert_same_bits(a, b)


def test_wrong_arguments_are_explained() -> None:
    x, gate, correction = inputs(2, 8, 16)
    for args, more, words in [
        ((x, gate[:, :9], correction), {}, r"gate must be \[8, 16\], is \[8, 9\]"),
        ((x, gate.astype(mx.bfloat16), correction), {}, "gate must be float32"),
        ((x, gate, correction[:3]), {}, r"correction must be \[8\]"),
        ((x, gate, correction), {"top": 9}, r"top must be from 1 to the experts \(8\), is 9"),
        ((x, gate, correction), {"groups": 8}, "groups of two or more"),
        ((x, gate, correction), {"groups": 2, "top_groups": 3}, "top_groups must be from 1 to groups"),
    ]:
        with pytest.raises(ValueError, match=words):
            native.route(*args, **{"top": 2, **more})
