"""Snapshots by the tokens that led to them: a radix trie, the least recently used out first when bytes run short.

An entry holds a target's state and the drafter's at one position, in buffers of their own. Knows tokens, bytes and
order of use; must not know requests or models. Not locked: one thread owns it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mlx_dspark.models.state import Snapshot

TOKEN_BYTES = 36  # an int object and its place in a tuple


@dataclass(eq=False)
class Entry:
    """The states after `snapshot.length` tokens; `draft_state` is None if no drafter watched."""

    snapshot: Snapshot
    draft_state: object | None
    nbytes: int
    used: int = 0

    @property
    def length(self) -> int:
        return self.snapshot.length


@dataclass(eq=False)
class _Node:
    edge: tuple[int, ...]
    parent: _Node | None
    children: dict[int, _Node] = field(default_factory=dict)
    entry: Entry | None = None


@dataclass(frozen=True)
class Found:
    """`entry` is the deepest usable one; the first `shared` tokens are known, with or without an entry there."""

    entry: Entry | None
    shared: int


class PrefixCache:
    """`limit` bytes of entries; 0 keeps nothing."""

    def __init__(self, limit: int):
        self.limit = limit
        self.nbytes = 0
        self._root = _Node((), None)
        self._clock = itertools.count(1)

    def __len__(self) -> int:
        return sum(1 for _ in self._entries())

    def find(self, ids: Sequence[int]) -> Found:
        """The longest entry whose tokens begin `ids` and leave at least one of them over."""
        node, depth, best = self._root, 0, None
        while True:
            if node.entry is not None and depth < len(ids):
                best = node.entry
            child = node.children.get(ids[depth]) if depth < len(ids) else None
            if child is None:
                break
            shared = _common(child.edge, ids, depth)
            depth += shared
            if shared < len(child.edge):
                break
            node = child
        if best is not None:
            best.used = next(self._clock)
        return Found(best, depth)

    def touch(self, ids: Sequence[int]) -> bool:
        """Is there an entry for exactly these tokens? It counts as used."""
        node = self._walk(ids)
        if node is None or node.entry is None:
            return False
        node.entry.used = next(self._clock)
        return True

    def put(self, ids: Sequence[int], snapshot: Snapshot, draft_state: object | None, draft_nbytes: int) -> None:
        """Keep the states after exactly `ids`, unless they alone are over the limit; may evict others."""
        nbytes = snapshot.nbytes + draft_nbytes + TOKEN_BYTES * len(ids)
        if nbytes > self.limit:
            return
        node = self._make(tuple(ids))
        if node.entry is not None:
            self.nbytes -= node.entry.nbytes
        node.entry = Entry(snapshot, draft_state, nbytes, next(self._clock))
        self.nbytes += nbytes
        while self.nbytes > self.limit:
            self._evict()

    def clear(self) -> None:
        self._root, self.nbytes = _Node((), None), 0

    def _walk(self, ids: Sequence[int]) -> _Node | None:
        node, depth = self._root, 0
        while depth < len(ids):
            child = node.children.get(ids[depth])
            if child is None or _common(child.edge, ids, depth) < len(child.edge):
                return None
            node, depth = child, depth + len(child.edge)
        return node

    def _make(self, ids: tuple[int, ...]) -> _Node:
        node, depth = self._root, 0
        while depth < len(ids):
            child = node.children.get(ids[depth])
            if child is None:
                child = node.children[ids[depth]] = _Node(ids[depth:], node)
            shared = _common(child.edge, ids, depth)
            if shared < len(child.edge):
                child = _split(child, shared)
            node, depth = child, depth + shared
        return node

    def _entries(self) -> Iterator[tuple[_Node, Entry]]:
        open_nodes = [self._root]
        while open_nodes:
            node = open_nodes.pop()
            open_nodes += node.children.values()
            if node.entry is not None:
                yield node, node.entry

    def _evict(self) -> None:
        oldest, entry = min(self._entries(), key=lambda found: found[1].used)
        self.nbytes -= entry.nbytes
        oldest.entry = None
        node = oldest
        while node.parent is not None and node.entry is None and not node.children:
            del node.parent.children[node.edge[0]]
            node = node.parent


def _common(edge: Sequence[int], ids: Sequence[int], start: int) -> int:
    """How many tokens of `edge` equal ids[start:]."""
    size = min(len(edge), len(ids) - start)
    if tuple(edge[:size]) == tuple(ids[start : start + size]):
        return size
    return next(i for i in range(size) if edge[i] != ids[start + i])


def _split(node: _Node, at: int) -> _Node:
    """Cut a node's edge after `at` tokens; the upper half is returned."""
    assert node.parent is not None
    upper = _Node(node.edge[:at], node.parent)
    node.parent.children[node.edge[0]] = upper
    node.edge, node.parent = node.edge[at:], upper
    upper.children[node.edge[0]] = node
    return upper
