"""Scripted checkpoints and servers over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import automaton
import pytest
from live import SCRIPTS, Live, Scripted, start

from mlx_dspark import Pair, load


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Scripted:
    folder = tmp_path_factory.mktemp("auto") / "automaton"
    follows = automaton.write(folder, SCRIPTS)
    return Scripted(load(str(folder), mode="baseline"), follows)


@pytest.fixture(scope="session")
def live(scripted: Scripted) -> Iterator[Live]:
    """The scripted checkpoint, drafted by one that knows the script."""
    running = start(scripted.with_drafter())
    yield running
    running.close()


@pytest.fixture
def serve(scripted: Scripted) -> Iterator[Callable[..., Live]]:
    """Start servers of one's own; closed after the test."""
    running: list[Live] = []

    def make(pair: Pair | None = None, **options: Any) -> Live:
        running.append(start(pair or scripted.with_drafter(), **options))
        return running[-1]

    yield make
    for one in running:
        one.close()
