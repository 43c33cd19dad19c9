"""The native drafter layers against `ops/draft.StockDraftStack`: over the native single ops to the bit, and over mlx's."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from layer_twin import assert_same_bits, in_every_setting, native, needs_native

from mlx_dspark.ops.draft import DraftForm, DraftLayer, DraftStack, Span, StockDraftStack
from mlx_dspark.ops.kernels import STOCK, Kernels
from mlx_dspark.ops.linear import Linear, quantize
from mlx_dspark.ops.native import NativeDraftStack, NativeKernels

pytestmark = needs_native
LAYERS = 2


def layers_of(kernels: Kernels, form: DraftForm, size: int, inner: int, dtype: mx.Dtype, bits: int) -> list[DraftLayer]:
    keys = iter(mx.random.split(mx.random.key(size + inner), 12 * LAYERS))

    def vector(width: int) -> mx.array:
        return (1 + 0.2 * mx.random.normal((width,), key=next(keys))).astype(dtype)

    def matrix(out: int, width: int) -> Linear:
        weight = (mx.random.normal((out, width), key=next(keys)) / width**0.5).astype(dtype)
        return kernels.linear(quantize(weight, bits) if bits else weight)

    wide, kv = form.heads * form.head_dim, form.kv_heads * form.head_dim
    return [
        DraftLayer(
            vector(size), matrix(wide, size), matrix(kv, size), matrix(kv, size), vector(form.head_dim),
            vector(form.head_dim), vector(form.heads), matrix(size, wide), vector(size), matrix(inner, size),
            matrix(inner, size), matrix(size, inner),
        )
        for _ in range(LAYERS)
    ]  # fmt: skip


def drafted(stack: DraftStack, form: DraftForm, size: int, dtype: mx.Dtype, widths: list[int]) -> list[mx.array]:
    """Contexts of several sequences, filled in two goes, and a packed block of `widths` rows behind them."""
    keys = iter(mx.random.split(mx.random.key(7), 2 * len(widths) + 1))
    contexts, spans, begin = [], [], 0
    for i, width in enumerate(widths):
        count, position = 3 + 9 * i, 40 * i
        context = mx.zeros((LAYERS, 2, form.kv_heads, count + 5, form.head_dim), dtype)
        for at in (0, count):
            rows = mx.random.normal((count if at == 0 else 2, size), key=next(keys)).astype(dtype)
            context = stack.context(rows, context, at, position + at)
        contexts.append(context)
        end = count + 2
        spans.append(Span(slice(begin, begin + width), position + end, context, max(0, end - form.window + 1), end))
        begin += width
    x = mx.random.normal((begin, size), key=next(keys)).astype(dtype)
    return [stack.block(x, spans), *contexts]


CASES = [
    (DraftForm(4, 2, 16, 9, 1e-6, 1e4), 48, 40, mx.float32, 0),
    (DraftForm(4, 2, 16, 9, 1e-6, 1e4), 64, 128, mx.bfloat16, 0),
    (DraftForm(3, 1, 6, 64, 1e-5, 1e6), 20, 7, mx.float16, 0),
    (DraftForm(4, 4, 32, 5, 1e-6, 1e4), 64, 64, mx.float32, 4),
    (DraftForm(2, 1, 64, 128, 1e-6, 1e4), 128, 64, mx.bfloat16, 8),
]


@pytest.mark.parametrize("widths", [[8], [1], [3, 8, 1]], ids=str)
@pytest.mark.parametrize(("form", "size", "inner", "dtype", "bits"), CASES)
def test_the_bits_of_the_single_ops(
    form: DraftForm, size: int, inner: int, dtype: mx.Dtype, bits: int, widths: list[int]
) -> None:
    kernels = NativeKernels(native)
    layers = layers_of(kernels, form, size, inner, dtype, bits)
    stack = kernels.draft(form, layers)
    assert isinstance(stack, NativeDraftStack)
    expected = drafted(StockDraftStack(kernels, form, layers), form, size, dtype, widths)
    found = in_every_setting(lambda: drafted(stack, form, size, dtype, widths))
    for a, b in zip(found, expected, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize(("form", "size", "inner", "dtype", "bits"), [c for c in CASES if c[3] == mx.float32])
def test_close_to_mlx_own_ops(form: DraftForm, size: int, inner: int, dtype: mx.Dtype, bits: int) -> None:
    own, stock = (k.draft(form, layers_of(k, form, size, inner, dtype, bits)) for k in (NativeKernels(native), STOCK))
    for a, b in zip(*(drafted(stack, form, size, dtype, [4, 8]) for stack in (own, stock)), strict=True):
        np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-3, atol=1e-3)


def test_a_context_someone_else_holds_is_not_written() -> None:
    form, size, inner, dtype, bits = CASES[0]
    kernels = NativeKernels(native)
    stack = kernels.draft(form, layers_of(kernels, form, size, inner, dtype, bits))
    before = mx.zeros((LAYERS, 2, form.kv_heads, 8, form.head_dim), dtype)
    mx.eval(before)
    after = stack.context(mx.ones((2, size), dtype), before, 1, 0)
    mx.eval(after)
    assert not before.any().item()
    assert after[:, :, :, 1:3].any().item()
    assert not after[:, :, :, 0].any().item()
    assert not after[:, :, :, 3:].any().item()


def test_a_layer_it_has_no_kernel_for_stays_in_single_ops() -> None:
    form, size, inner, dtype, _ = CASES[0]
    kernels = NativeKernels(native)
    layers = layers_of(kernels, form, size, inner, dtype, 0)
    biased = kernels.linear(mx.zeros((size, inner)), bias=mx.zeros(size))
    assert isinstance(kernels.draft(form, [layers[0], replace(layers[1], down=biased)]), StockDraftStack)


def test_bad_inputs_are_refused_in_words() -> None:
    form, size, inner, dtype, bits = CASES[0]
    kernels = NativeKernels(native)
    built = kernels.draft(form, layers_of(kernels, form, size, inner, dtype, bits))
    assert isinstance(built, NativeDraftStack)
    stack, x = built.stack, mx.zeros((3, size))
    context = mx.zeros((LAYERS, 2, form.kv_heads, 8, form.head_dim))
    for call, words in (
        (lambda: stack.block(mx.zeros((3, size + 1)), [context], [(0, 4, 3, 4)]), "x must be"),
        (lambda: stack.block(x, [context], [(0, 9, 3, 9)]), "must lie in its context"),
        (lambda: stack.block(x, [context], [(0, 4, 2, 4)]), "must have x's rows"),
        (lambda: stack.block(x, [context.astype(mx.bfloat16)], [(0, 4, 3, 4)]), "a context must be"),
        (lambda: stack.context(x, context, 6, 0), "must fit the capacity"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(ValueError, match="12 weights"):
        native.DraftStack([(x,)], heads=1, kv_heads=1, head_dim=2, window=4, eps=1e-6, scale=1.0, theta=1e4)
