"""The ops of `mlx-dspark-cpu`, the native accelerator for Linux CPUs, as Kernels; absent or switched off, it says so.

Every row's bits are independent of the other rows, of the thread count and of how a sequence is cut into blocks.
Matrices in a form the accelerator has no kernel for keep mlx's own op.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlx_dspark.ops.attention import AttentionForm
from mlx_dspark.ops.draft import DraftForm, DraftLayer, DraftStack, Span, StockDraftStack
from mlx_dspark.ops.kernels import STOCK, ExpertMlp, Matrix
from mlx_dspark.ops.linear import Embedding, Linear, QuantizedWeight
from mlx_dspark.ops.mamba import MambaBlock, MambaOp, MambaWeights, Replay
from mlx_dspark.ops.markov import Choose, MarkovWalk, StockMarkovWalk
from mlx_dspark.ops.moe import Routing
from mlx_dspark.ops.rows import Rows

SWITCH = "MLX_DSPARK_NATIVE"
GROUPS = {"affine": (64,), "nvfp4": (16,)}
BITS = {"affine": (4, 8), "nvfp4": (4,)}
INTERFACE = 3
"""Of the accelerator: what its functions take and give."""
REINSTALL = "pip install --force-reinstall --no-deps --no-cache-dir mlx-dspark-cpu (in a checkout: ./native/cpu)"
INSTALL = "install it with pip install 'mlx-dspark[cpu]' (needs g++)"


def find_native() -> tuple[NativeKernels | None, str]:
    """The accelerator's kernels if they can be used here, and one sentence that says with what or why not."""
    if os.environ.get(SWITCH, "1") == "0":
        return None, f"mlx-dspark-cpu is off: {SWITCH} is 0"
    try:
        module = importlib.import_module("mlx_dspark_cpu")
    except ImportError:
        return None, f"mlx-dspark-cpu is not installed, so mlx's own CPU ops run; {INSTALL}"
    if not module.available():
        return None, str(module.status())
    interface = module.features().get("interface", 1)
    if interface != INTERFACE:
        age = "older" if interface < INTERFACE else "newer"
        return None, (
            f"mlx-dspark-cpu is off: its build is {age} than this mlx-dspark (interface {interface}, {INTERFACE} is "
            f"needed), so mlx's own CPU ops run; {REINSTALL}"
        )
    return NativeKernels(module), str(module.status())


@dataclass(frozen=True, eq=False)
class NativeLinear:
    """A matrix in the accelerator's product; `form` names how a packed one is packed."""

    module: Any
    matrix: Matrix
    bias: mx.array | None

    def __call__(self, x: mx.array) -> mx.array:
        y = self._product(x)
        return y if self.bias is None else y + self.bias

    def _product(self, x: mx.array) -> mx.array:
        m = self.matrix
        if isinstance(m, QuantizedWeight):
            wide = x if m.tensor_scale is None else x.astype(mx.float32)
            return m.scaled(self.module.qmm(wide, m.weight, m.scales, m.biases, **_form(m)), x.dtype)
        y: mx.array = self.module.mm(x, m)
        return y


def _form(q: QuantizedWeight) -> dict[str, Any]:
    return {"group_size": q.group_size, "bits": q.bits, "mode": q.mode}


def _supported(matrix: Matrix) -> bool:
    if not isinstance(matrix, QuantizedWeight):
        return True
    return matrix.group_size in GROUPS.get(matrix.mode, ()) and matrix.bits in BITS.get(matrix.mode, ())


def _parts(matrix: Matrix) -> Any:
    return (matrix.weight, matrix.scales, matrix.biases) if isinstance(matrix, QuantizedWeight) else matrix


@dataclass(frozen=True, eq=False)
class NativeMlp:
    """Both products and the activation between them in one primitive."""

    module: Any
    up: Matrix
    down: Matrix

    def __call__(self, x: mx.array) -> mx.array:
        form = _form(self.up) if isinstance(self.up, QuantizedWeight) else {}
        y: mx.array = self.module.mlp(x, _parts(self.up), _parts(self.down), **form)
        return y


@dataclass(frozen=True, eq=False)
class NativeExpertMlp:
    """All chosen experts of all rows in one primitive; each used expert is read once."""

    module: Any
    up: Matrix
    down: Matrix

    def __call__(self, x: mx.array, ids: mx.array, weights: mx.array) -> mx.array:
        form = _form(self.up) if isinstance(self.up, QuantizedWeight) else {}
        y: mx.array = self.module.moe(x, ids, weights, _parts(self.up), _parts(self.down), **form)
        return y


def _bare(linear: Linear) -> Matrix | None:
    """The matrix of one of our own linears without a bias."""
    return linear.matrix if isinstance(linear, NativeLinear) and linear.bias is None else None


def _alike(up: Matrix, down: Matrix) -> bool:
    """Whether one call may take both: packed alike and without a scale of their own, or both dense."""
    if isinstance(up, QuantizedWeight) and isinstance(down, QuantizedWeight):
        return _form(up) == _form(down) and up.tensor_scale is None and down.tensor_scale is None and _supported(up)
    return isinstance(up, mx.array) and isinstance(down, mx.array)


@dataclass(frozen=True, eq=False)
class NativeReplay:
    """The block's own inputs: the accelerator walks any number of them again from the state before."""

    op: NativeMamba
    projected: mx.array
    window: mx.array
    ssm: mx.array

    @property
    def nbytes(self) -> int:
        return self.projected.nbytes + self.window.nbytes + self.ssm.nbytes

    def parts(self) -> tuple[Any, ...]:
        """What the accelerator walks again."""
        w = self.op.weights
        return self.projected, self.window, self.ssm, w.conv, w.conv_bias, w.a, w.dt_bias

    def after(self, keep: int) -> tuple[mx.array, mx.array]:
        (found,) = _replayed([self], [keep])
        return found


def _replayed(blocks: Sequence[NativeReplay], keep: Sequence[int]) -> list[tuple[mx.array, mx.array]]:
    """All in one primitive; they are of one model."""
    op = blocks[0].op
    low, high = op.weights.dt_limit
    found: list[tuple[mx.array, mx.array]] = op.module.mamba_replay(
        [b.parts() for b in blocks], keep=list(keep), dt_min=low, dt_max=high
    )
    return found


@dataclass(frozen=True, eq=False)
class NativeMamba:
    """Conv, walk and gated norm in one primitive; the state is read and written once a block."""

    module: Any
    weights: MambaWeights

    def __call__(self, projected: mx.array, window: mx.array, ssm: mx.array) -> MambaBlock:
        w = self.weights
        y, window_after, ssm_after = self.module.mamba(
            projected, window, ssm, w.conv, w.conv_bias, w.a, w.d, w.dt_bias, w.norm,
            eps=w.eps, dt_min=w.dt_limit[0], dt_max=w.dt_limit[1],
        )  # fmt: skip
        return MambaBlock(y, window_after, ssm_after, NativeReplay(self, projected, window, ssm))


@dataclass(frozen=True, eq=False)
class NativeMarkovWalk:
    """A greedy walk in one primitive; `stock` where picking is more than the likeliest token."""

    module: Any
    markov_in: mx.array
    markov_out: mx.array
    stock: StockMarkovWalk

    def __call__(self, logits: mx.array, anchor: int, choose: Choose | None) -> tuple[mx.array, mx.array]:
        if choose is not None:
            return self.stock(logits, anchor, choose)
        drafts, margins = self.module.markov_walk(logits, anchor, self.markov_in, self.markov_out)
        return drafts, margins


@dataclass(frozen=True, eq=False)
class NativeEmbedding:
    """A table's rows in one primitive, unpacked to the bits of mlx's own."""

    module: Any
    table: Matrix

    def __call__(self, ids: mx.array) -> mx.array:
        form = _form(self.table) if isinstance(self.table, QuantizedWeight) else {}
        y: mx.array = self.module.embed(ids, _parts(self.table), **form)
        return y


@dataclass(frozen=True, eq=False)
class NativeDraftStack:
    """All layers in one primitive, to the bits of the single ops; `stack` holds the weights."""

    stack: Any

    def block(self, x: mx.array, spans: Sequence[Span]) -> mx.array:
        slots = [(s.begin, s.end, s.rows.stop - s.rows.start, s.position) for s in spans]
        y: mx.array = self.stack.block(x, [s.context for s in spans], slots)
        return y

    def context(self, x: mx.array, buffer: mx.array, at: int, position: int) -> mx.array:
        filled: mx.array = self.stack.context(x, buffer, at, position)
        return filled


def _held(linear: Linear) -> Any:
    """What the native stack takes as a matrix, or None if it has no kernel for it."""
    matrix = _bare(linear)
    if not isinstance(matrix, QuantizedWeight):
        return matrix
    packed = (matrix.weight, matrix.scales, matrix.biases, matrix.group_size, matrix.bits, matrix.mode)
    return packed if matrix.tensor_scale is None else None


@dataclass(frozen=True, eq=False)
class NativeKernels:
    """`module` is mlx_dspark_cpu."""

    module: Any
    name: str = "mlx-dspark-cpu"
    mixed: bool = True

    def linear(self, matrix: Matrix, bias: mx.array | None = None) -> Linear:
        return NativeLinear(self.module, matrix, bias) if _supported(matrix) else STOCK.linear(matrix, bias)

    def embedding(self, table: Matrix) -> Embedding:
        values, plain = (
            (table.scales, table.tensor_scale is None) if isinstance(table, QuantizedWeight) else (table, True)
        )
        fits = plain and values.dtype in (mx.float32, mx.bfloat16) and _supported(table)
        return NativeEmbedding(self.module, table) if fits else STOCK.embedding(table)

    def mlp(self, up: Linear, down: Linear) -> Linear:
        first, second = _bare(up), _bare(down)
        if first is None or second is None or not _alike(first, second):
            return STOCK.mlp(up, down)
        return NativeMlp(self.module, first, second)

    def experts(self, up: Matrix, down: Matrix) -> ExpertMlp:
        return NativeExpertMlp(self.module, up, down) if _alike(up, down) else STOCK.experts(up, down)

    def mamba(self, weights: MambaWeights) -> MambaOp:
        return NativeMamba(self.module, weights)

    def replay(self, blocks: Sequence[Replay], keep: Sequence[int]) -> list[tuple[mx.array, mx.array]]:
        own = [block for block in blocks if isinstance(block, NativeReplay)]
        return _replayed(own, keep) if own and len(own) == len(blocks) else STOCK.replay(blocks, keep)

    def rms_norm(self, x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
        y: mx.array = self.module.rms_norm(x, weight, eps)
        return y

    def norm_rope(self, x: mx.array, weight: mx.array, eps: float, theta: float, position: int) -> mx.array:
        y: mx.array = self.module.qk_norm_rope(x, weight, eps=eps, theta=theta, position=position)
        return y

    def attend(
        self, q: mx.array, keys: mx.array, values: mx.array, length: int, form: AttentionForm, rows: Rows
    ) -> mx.array:
        """All rows in one call whatever `rows` says: each has the bits it has alone."""
        y: mx.array = self.module.attend(
            q, keys, values, length=length, scale=form.scale, window=form.window, sinks=form.sinks
        )
        return y

    def route(self, x: mx.array, gate: mx.array, correction: mx.array, routing: Routing) -> tuple[mx.array, mx.array]:
        ids, weights = self.module.route(
            x, gate, correction, top=routing.top, scale=routing.scale, normalize=routing.normalize,
            groups=routing.groups, top_groups=routing.top_groups,
        )  # fmt: skip
        return ids, weights

    def swiglu(self, gate: mx.array, up: mx.array) -> mx.array:
        y: mx.array = self.module.swiglu(gate, up)
        return y

    def likeliest(self, logits: mx.array) -> mx.array:
        if logits.dtype not in (mx.float32, mx.bfloat16):
            return STOCK.likeliest(logits)
        picks: mx.array = self.module.likeliest(logits)
        return picks

    def markov(self, markov_in: Embedding, markov_out: Linear, dtype: mx.Dtype) -> MarkovWalk:
        stock, out = StockMarkovWalk(markov_in, markov_out, dtype), _bare(markov_out)
        table = markov_in.table if isinstance(markov_in, NativeEmbedding) else None
        if isinstance(table, mx.array) and isinstance(out, mx.array):
            return NativeMarkovWalk(self.module, table, out, stock)
        return stock

    def draft(self, form: DraftForm, layers: Sequence[DraftLayer]) -> DraftStack:
        held = []
        for w in layers:
            q, k, v, o, gate, up, down = map(_held, (w.q_proj, w.k_proj, w.v_proj, w.o_proj, w.gate, w.up, w.down))
            norms = (w.q_norm, w.k_norm, w.sinks)
            held.append((w.input_norm, q, k, v, *norms, o, w.post_norm, gate, up, down))
        if any(part is None for layer in held for part in layer):
            return StockDraftStack(self, form, layers)
        stack = self.module.DraftStack(
            held, heads=form.heads, kv_heads=form.kv_heads, head_dim=form.head_dim, window=form.window, eps=form.eps,
            scale=form.scale, theta=form.theta,
        )  # fmt: skip
        return NativeDraftStack(stack)
