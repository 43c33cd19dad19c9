"""What each sequence has consumed: attention keys and values, conv windows, SSM states; snapshot and restore.

Holds arrays and lengths; knows no weights and no token. A State has B rows with lengths of their own, each row its
own arrays, so rows join and leave a batch without copying and a row's attention sees exactly its own length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from mlx_dspark.ops.mamba import Replay, replay

GROWTH = 256
Again = Callable[[Sequence[Replay], Sequence[int]], list[tuple[mx.array, mx.array]]]


@dataclass(eq=False)
class KVCache:
    """Keys and values [1, Hkv, capacity, D] of one attention layer of one row; the first `length` are valid."""

    keys: mx.array
    values: mx.array
    length: int = 0

    @classmethod
    def empty(cls, kv_heads: int, head_dim: int, dtype: mx.Dtype) -> KVCache:
        blank = mx.zeros((1, kv_heads, 0, head_dim), dtype)
        return cls(blank, blank)

    def append(self, keys: mx.array, values: mx.array) -> None:
        """Add [1, Hkv, T, D] after the valid ones."""
        end = self.length + keys.shape[2]
        if end > self.keys.shape[2]:
            self._grow(end)
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end

    def _grow(self, need: int) -> None:
        extra = -(-need // GROWTH) * GROWTH - self.length
        blank = mx.zeros((1, self.keys.shape[1], extra, self.keys.shape[3]), self.keys.dtype)
        self.keys = mx.concatenate([self.keys[:, :, : self.length], blank], axis=2)
        self.values = mx.concatenate([self.values[:, :, : self.length], blank], axis=2)

    def copy(self) -> KVCache:
        return KVCache(self.keys[:, :, : self.length], self.values[:, :, : self.length], self.length)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def arrays(self) -> list[mx.array]:
        return [self.keys, self.values]


@dataclass(eq=False)
class MambaCache:
    """The recurrent state of one Mamba layer of one row: `window` [K-1, C] conv inputs, `ssm` [G, R, P, N] float32."""

    window: mx.array
    ssm: mx.array

    def copy(self) -> MambaCache:
        return MambaCache(self.window, self.ssm)

    @property
    def nbytes(self) -> int:
        return self.window.nbytes + self.ssm.nbytes

    def arrays(self) -> list[mx.array]:
        return [self.window, self.ssm]


LayerCache = KVCache | MambaCache | None


@dataclass(eq=False)
class Row:
    """One sequence: a cache a layer (None where the layer keeps nothing) and how many tokens it has consumed."""

    layers: list[LayerCache]
    length: int = 0

    def copy(self) -> Row:
        return Row([None if c is None else c.copy() for c in self.layers], self.length)

    @property
    def nbytes(self) -> int:
        return sum(c.nbytes for c in self.layers if c is not None)

    def arrays(self) -> list[mx.array]:
        return [a for c in self.layers if c is not None for a in c.arrays()]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """An immutable Row at a position. Recurrent parts are references, keys and values a view cut to length."""

    row: Row

    @property
    def length(self) -> int:
        return self.row.length

    @property
    def nbytes(self) -> int:
        return self.row.nbytes

    def detached(self) -> Snapshot:
        """The same with keys and values in buffers of their own, evaluated: keeps nothing else alive."""
        row = self.row.copy()
        for cache in row.layers:
            if isinstance(cache, KVCache):
                cache.keys, cache.values = mx.contiguous(cache.keys), mx.contiguous(cache.values)
        mx.eval(row.arrays())
        return Snapshot(row)


@dataclass(eq=False)
class State:
    """B rows. Changed only by a target's prefill, verify and rollback, and by `restore`."""

    rows: list[Row]

    @property
    def lengths(self) -> list[int]:
        return [row.length for row in self.rows]

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)

    def arrays(self) -> list[mx.array]:
        return [a for row in self.rows for a in row.arrays()]

    def snapshot(self, row: int = 0) -> Snapshot:
        return Snapshot(self.rows[row].copy())

    def restore(self, snapshot: Snapshot, row: int = 0) -> None:
        """Put row `row` back to the snapshot; the same Row object, so whoever shares it sees the change."""
        fresh = snapshot.row.copy()
        self.rows[row].layers, self.rows[row].length = fresh.layers, fresh.length


@dataclass(eq=False)
class Trace:
    """What a verify keeps so that a tail of it can be undone; lives for one round."""

    lengths: list[int]  # per row, before the block
    widths: list[int]
    mamba: dict[tuple[int, int], Replay] = field(default_factory=dict)  # (layer, row)

    @property
    def nbytes(self) -> int:
        return sum(replay.nbytes for replay in self.mamba.values())


def roll_back(state: State, trace: Trace, keep: Sequence[int], again: Again = replay) -> None:
    """Leave each row as if it had consumed only its first `keep` tokens of the block (0 <= keep <= width).

    `again` walks the blocks of recurrent layers once more.
    """
    walked: list[tuple[Row, int, Replay, int]] = []
    for index, row in enumerate(state.rows):
        assert 0 <= keep[index] <= trace.widths[index]
        if keep[index] == trace.widths[index]:
            continue
        row.length = trace.lengths[index] + keep[index]
        for layer, cache in enumerate(row.layers):
            if isinstance(cache, KVCache):
                cache.length = row.length
            elif isinstance(cache, MambaCache):
                walked.append((row, layer, trace.mamba[layer, index], keep[index]))
    found = again([block for _, _, block, _ in walked], [count for *_, count in walked])
    for (row, layer, *_), (window, ssm) in zip(walked, found, strict=True):
        row.layers[layer] = MambaCache(window, ssm)
