"""The drafter that never drafts, the one that asks others in turn, and what both pass on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx

from mlx_dspark.models.drafter import Contest, DraftBlock, Drafter, DraftRequest, NoDrafter, block_of
from mlx_dspark.models.lookup import Lookup


def pick(logits: mx.array, position: int, pending: mx.array | None) -> mx.array:
    return mx.argmax(logits, axis=-1)


class Fake:
    """Drafts its own number for the anchors it knows; remembers what it was asked and told."""

    def __init__(self, name: str, number: int, knows: Sequence[int], taps: tuple[int, ...], max_draft: int = 7):
        self.name, self.number, self.knows, self.taps, self.max_draft = name, number, knows, taps, max_draft
        self.context, self.sources = number, (name,)
        self.asked: list[list[DraftRequest]] = []

    def new_state(self) -> list[Any]:
        return []

    def copy_state(self, state: list[Any]) -> list[Any]:
        return list(state)

    def state_nbytes(self, state: list[Any]) -> int:
        return 10 * self.number

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        self.asked.append(list(requests))
        return [block_of([self.number] * (r.count if r.anchor in self.knows else 0), self.name) for r in requests]

    def observe(self, state: list[Any], tokens: Sequence[int], position: int, taps: Mapping[int, mx.array]) -> None:
        state.append((list(tokens), position, sorted(taps)))


def found(blocks: Sequence[DraftBlock]) -> list[tuple[list[int], str]]:
    return [(b.tokens.tolist(), b.source) for b in blocks]


def test_a_block_has_the_length_of_its_tokens() -> None:
    block = block_of([3, 4, 5], "x")
    assert (len(block), block.tokens.dtype, block.source) == (3, mx.int32, "x")
    empty = block_of([], "x")
    assert (len(empty), empty.tokens.shape, empty.tokens.dtype) == (0, (0,), mx.int32)


def test_no_drafter_never_drafts() -> None:
    drafter: Drafter = NoDrafter()
    assert (drafter.max_draft, drafter.taps, drafter.context) == (0, (), 0)
    state = drafter.new_state()
    drafter.observe(state, [1, 2], 0, {})
    blocks = drafter.propose([DraftRequest(state, 1, 2, 7, pick)] * 3)
    assert found(blocks) == [([], drafter.name)] * 3
    assert drafter.propose([]) == []


def test_the_first_block_that_is_not_empty_wins_for_each_request() -> None:
    a, b = Fake("a", 1, (10, 12), (5, 2)), Fake("b", 2, (10, 11), (7, 2))
    first = Contest([a, b])
    requests = [DraftRequest(first.new_state(), anchor, 4, 3, pick) for anchor in (10, 11, 12, 13)]
    blocks = first.propose(requests)
    assert found(blocks)[:3] == [([1, 1, 1], "a"), ([2, 2, 2], "b"), ([1, 1, 1], "a")]
    assert len(blocks[3]) == 0
    assert [[r.anchor for r in asked] for asked in a.asked] == [[10, 11, 12, 13]]
    assert [[r.anchor for r in asked] for asked in b.asked] == [[11, 13]], "only what is still open"
    assert b.asked[0][0].state is requests[1].state[1]
    assert first.propose([]) == []


def test_nobody_is_asked_when_nothing_is_open() -> None:
    a, b = Fake("a", 1, (10,), ()), Fake("b", 2, (10,), ())
    first = Contest([a, b])
    first.propose([DraftRequest(first.new_state(), 10, 4, 2, pick)])
    assert b.asked == []


def test_a_union_of_its_parts() -> None:
    first = Contest([Fake("a", 1, (), (5, 2), max_draft=3), Fake("b", 9, (), (7, 2), max_draft=6), NoDrafter()])
    assert first.name.startswith("a+b+")
    assert (first.taps, first.max_draft, first.context) == ((2, 5, 7), 6, 9)
    assert Contest([Lookup(), Fake("b", 1, (), ())]).name == "lookup+b"


def test_nobody_is_asked_for_more_than_it_can() -> None:
    short, long = Fake("short", 1, (10,), (), max_draft=2), Fake("long", 2, (11,), (), max_draft=5)
    first = Contest([short, long])
    blocks = first.propose([DraftRequest(first.new_state(), anchor, 4, 7, pick) for anchor in (10, 11)])
    assert found(blocks) == [([1, 1], "short"), ([2] * 5, "long")]


def test_everyone_observes_with_its_own_taps() -> None:
    first = Contest([Fake("a", 1, (), (5, 2)), Lookup(), Fake("b", 2, (), (7,))])
    state = first.new_state()
    rows = mx.zeros((1, 4))
    first.observe(state, [8, 9], 0, {2: rows, 5: rows, 7: rows})
    first.observe(state, [6], 2, {})
    assert state[0] == [([8, 9], 0, [2, 5]), ([6], 2, [])]
    assert state[1].ids == [8, 9, 6]
    assert state[2] == [([8, 9], 0, [7]), ([6], 2, [])]


def test_a_copied_state_is_independent_and_its_bytes_add_up() -> None:
    a, b = Fake("a", 1, (), ()), Lookup()
    both = Contest([a, b])
    state = both.new_state()
    both.observe(state, [1, 2, 3], 0, {})
    copied = both.copy_state(state)
    both.observe(state, [1, 2, 9], 3, {})
    assert len(copied[0]) == 1
    copied[1].ids.append(1)
    assert found(b.propose([DraftRequest(copied[1], 2, 4, 1, pick)])) == [([3], "lookup")]
    assert found(b.propose([DraftRequest(state[1], 2, 6, 1, pick)])) == [([], "lookup")]
    assert both.state_nbytes(copied) == 10 + b.state_nbytes(copied[1]) > 10
    assert NoDrafter().state_nbytes(NoDrafter().copy_state(None)) == 0
