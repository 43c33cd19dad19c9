"""Mamba-2's state recurrence, walked token by token in float32 (Dao & Gu, 2024, eq. 1 with scalar A per head).

The walk is the only form: a chunked scan sums in another order, so a state would depend on how its tokens came.
Shapes: G groups, R heads a group, P channels a head, N state size; state [G, R, P, N].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, eq=False)
class ScanInputs:
    """What T tokens bring to the recurrence: S = decay * S + inject x B; enough to walk any prefix of them again."""

    decay: mx.array  # [T, G, R, 1, 1]  exp(dt A)
    inject: mx.array  # [T, G, R, P, 1]  dt x
    b: mx.array  # [T, G, 1, 1, N]

    def __len__(self) -> int:
        return self.decay.shape[0]

    def first(self, count: int) -> ScanInputs:
        return ScanInputs(self.decay[:count], self.inject[:count], self.b[:count])

    @property
    def nbytes(self) -> int:
        return self.decay.nbytes + self.inject.nbytes + self.b.nbytes


Walk = Callable[[mx.array, ScanInputs, mx.array], tuple[mx.array, mx.array]]
"""(state, scan, c) -> read-outs and the state after; see `walk`."""


def scan_inputs(x: mx.array, dt: mx.array, a: mx.array, b: mx.array) -> ScanInputs:
    """x [T, G, R, P], dt [T, G, R] (after softplus and clamp), a [G, R] (negative), b [T, G, N]; all float32."""
    decay = mx.exp(dt * a)[..., None, None]
    return ScanInputs(decay, (dt[..., None] * x)[..., None], b[:, :, None, None, :])


def walk(state: mx.array, scan: ScanInputs, c: mx.array) -> tuple[mx.array, mx.array]:
    """Read-outs y [T, G, R, P] = S_t C_t for c [T, G, N], and the state after the last token."""
    reads = []
    for t in range(len(scan)):
        state = scan.decay[t] * state + scan.inject[t] * scan.b[t]
        reads.append((state * c[t][:, None, None, :]).sum(-1))
    return mx.stack(reads), state


def advance(state: mx.array, scan: ScanInputs, by: Walk = walk) -> mx.array:
    """The state alone after a scan of T >= 0 tokens, in the bits that `by` leaves."""
    return by(state, scan, scan.b[:, :, 0, 0])[1] if len(scan) else state


def softplus(x: mx.array) -> mx.array:
    return mx.logaddexp(x, mx.zeros((), x.dtype))
