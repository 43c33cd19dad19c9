"""Read a built model's arrays from disk now, some at a time, instead of at first use."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import mlx.core as mx


def arrays_of(holder: Any) -> Iterator[mx.array]:
    """Every array reachable through dataclass fields, lists and tuples."""
    if isinstance(holder, mx.array):
        yield holder
    elif isinstance(holder, (list, tuple)):
        for item in holder:
            yield from arrays_of(item)
    elif dataclasses.is_dataclass(holder):
        for field in dataclasses.fields(holder):
            yield from arrays_of(getattr(holder, field.name))


def materialize(holder: Any) -> int:
    """Evaluate all of them, 64 at a time; their bytes, shared ones counted once."""
    unique = list({id(a): a for a in arrays_of(holder)}.values())
    for start in range(0, len(unique), 64):
        mx.eval(unique[start : start + 64])
    return sum(a.nbytes for a in unique)
