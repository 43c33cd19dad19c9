"""Native tests leave the library's settings as they found them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from layer_twin import WHY_NOT, native


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    yield
    if not WHY_NOT:
        native.set_simd("auto")
        native.set_threads(0)
