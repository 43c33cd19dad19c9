"""The n-gram copier: longest match first, latest occurrence, the anchor included, never more than asked."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest

from mlx_dspark.models.drafter import DraftRequest
from mlx_dspark.models.lookup import Lookup, LookupState


def never(logits: mx.array, position: int, pending: mx.array | None) -> mx.array:
    raise AssertionError("a copy needs no pick")


def after(ids: Sequence[int], lookup: Lookup | None = None) -> tuple[Lookup, LookupState]:
    """A state that consumed all of `ids` but the last, which is the anchor."""
    lookup = lookup or Lookup()
    state = lookup.new_state()
    lookup.observe(state, ids[:-1], 0, {})
    return lookup, state


def drafts(ids: Sequence[int], count: int = 7, lookup: Lookup | None = None) -> list[int]:
    lookup, state = after(ids, lookup)
    (block,) = lookup.propose([DraftRequest(state, ids[-1], len(ids) - 1, count, never)])
    assert block.source == "lookup"
    assert block.tokens.dtype == mx.int32
    return block.tokens.tolist()


def naive(ids: Sequence[int], count: int, longest: int, shortest: int) -> list[int]:
    """By looking at every earlier place; an occurrence ends before the anchor."""
    for n in range(min(longest, len(ids)), shortest - 1, -1):
        ends = [e for e in range(n, len(ids)) if list(ids[e - n : e]) == list(ids[-n:])]
        if ends:
            return list(ids[ends[-1] : -1])[:count]
    return []


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1]),
        ([1, 2, 7, 1, 2, 8, 1, 2], [8, 1]),  # the latest occurrence
        ([9, 1, 2, 7, 5, 1, 2, 8, 9, 1, 2], [7, 5, 1, 2, 8, 9, 1]),  # the longer match, though it is older
        ([1, 2, 3], []),
        ([4, 1, 5, 1], []),  # one token is no match
        ([4], []),
    ],
)
def test_copies(ids: list[int], expected: list[int]) -> None:
    assert drafts(ids) == expected


@pytest.mark.parametrize(("longest", "shortest"), [(4, 2), (3, 3), (6, 1), (1, 1)])
def test_equals_a_naive_search(longest: int, shortest: int) -> None:
    rng = np.random.default_rng(longest)
    lookup = Lookup(longest, shortest)
    for _ in range(200):
        ids = [int(t) for t in rng.integers(0, int(rng.integers(2, 6)), int(rng.integers(1, 40)))]
        count = int(rng.integers(0, 9))
        assert drafts(ids, count, lookup) == naive(ids, count, longest, shortest)


def test_never_more_than_asked_and_requests_are_apart() -> None:
    lookup, first = after([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2])
    _, second = after([5, 6, 7, 5, 6], lookup)
    for count in range(8):
        blocks = lookup.propose([DraftRequest(first, 2, 10, count, never), DraftRequest(second, 6, 4, count, never)])
        assert [b.tokens.tolist() for b in blocks] == [[3, 4, 5, 6, 7, 8, 9][:count], [7, 5][:count]]


def test_proposing_changes_nothing_and_pieces_equal_the_whole() -> None:
    ids = [int(t) for t in np.random.default_rng(0).integers(0, 4, 60)]
    lookup, whole = after(ids)
    pieces = lookup.new_state()
    for begin in range(0, len(ids) - 1, 7):
        lookup.observe(pieces, ids[begin : min(begin + 7, len(ids) - 1)], begin, {})
        lookup.propose([DraftRequest(pieces, ids[-1], begin, 7, never)])
    assert (pieces.ids, pieces.after) == (whole.ids, whole.after)


def test_the_index_grows_by_a_constant_a_token() -> None:
    _, state = after(list(range(1001)))
    assert len(state.after) <= 3 * 1000
    assert (Lookup().name, Lookup().max_draft, Lookup().taps, Lookup().context) == ("lookup", 7, (), 0)
