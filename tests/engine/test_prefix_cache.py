"""The trie finds the longest exact prefix and forgets what was used longest ago."""

from __future__ import annotations

import mlx.core as mx
from hypothesis import given
from hypothesis import strategies as st

from mlx_dspark.engine.prefix_cache import TOKEN_BYTES, PrefixCache
from mlx_dspark.models.state import MambaCache, Row, Snapshot

ROOM = 1 << 20


def snapshot(length: int) -> Snapshot:
    return Snapshot(Row([MambaCache(mx.zeros((1, 4)), mx.zeros((1, 1, 1, 4)))], length))


def put(cache: PrefixCache, ids: list[int]) -> None:
    cache.put(ids, snapshot(len(ids)), None, 0)


def found(cache: PrefixCache, ids: list[int]) -> tuple[int, int]:
    got = cache.find(ids)
    return (got.entry.length if got.entry else 0), got.shared


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=12),
    st.lists(st.integers(0, 2), max_size=9),
)
def test_find_agrees_with_comparing_every_key(keys: list[list[int]], ids: list[int]) -> None:
    cache = PrefixCache(ROOM)
    for key in keys:
        put(cache, key)
    usable = [len(k) for k in keys if k == ids[: len(k)] and len(k) < len(ids)]
    shared = [
        next((i for i, (a, b) in enumerate(zip(k, ids, strict=False)) if a != b), min(len(k), len(ids))) for k in keys
    ]
    assert found(cache, ids) == (max(usable, default=0), max(shared, default=0))
    assert len(cache) == len({tuple(k) for k in keys})


def test_the_least_recently_used_goes_first_and_bytes_add_up() -> None:
    one = snapshot(2).nbytes + 2 * TOKEN_BYTES
    cache = PrefixCache(3 * one)
    for ids in ([1, 1], [1, 2], [2, 1]):
        put(cache, ids)
    assert cache.nbytes == 3 * one
    assert found(cache, [1, 1, 9])[0] == 2
    assert cache.touch([2, 1])
    put(cache, [3, 3])
    assert [found(cache, [*ids, 9])[0] for ids in ([1, 1], [1, 2], [2, 1], [3, 3])] == [2, 0, 2, 2]
    assert cache.nbytes == 3 * one


def test_replacing_counts_once_and_too_large_is_not_kept() -> None:
    cache = PrefixCache(1000)
    put(cache, [1, 2])
    before = cache.nbytes
    put(cache, [1, 2])
    assert cache.nbytes == before
    put(cache, list(range(1000)))
    assert len(cache) == 1
    cache.clear()
    assert (len(cache), cache.nbytes) == (0, 0)
