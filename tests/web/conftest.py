"""A browser, and servers whose model says what the tests need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import automaton
import pytest
from browser import Browser, Tab, chromium
from live import Live, Scripted, Slow, start

from mlx_dspark import load

XSS = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script><b>not bold</b> &amp; `x`"
CODE = "Here:\n\n```python\ndef f(n):\n    return n\n```\nThat is all."
SCRIPTS = [
    "Fine, no thinking at all.",  # 0
    "I think of\nmany things\n</think>The answer is 42, naïve 🙂 reader!",  # 1
    f"</think>{XSS}",  # 2
    f"</think>{CODE}",  # 3
    "</think>" + " ".join(f"word{i}" for i in range(300)),  # 4: long
    f"{XSS.replace('x', 'y')}</think>done",  # 5: markup in the thinking
    "</think>" + "w" * 3 + "".join(f"{i:03}" for i in range(150)),  # 6: a word wider than a phone
]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("no Chromium here: install it (Debian: apt-get install chromium) or name it in CHROMIUM")
    one = Browser(program, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Callable[..., Tab]]:
    """Open tabs; each must end without a word in the console and without a request to elsewhere."""
    opened: list[tuple[Tab, str, bool]] = []

    def make(url: str, *, view: str = "chat", silent: bool = True, **size: Any) -> Tab:
        one = browser.tab(**size)
        opened.append((one, url, silent))
        one.open(f"{url}/#{view}")
        one.until("document.querySelector('#server').textContent")
        return one

    yield make
    for one, url, silent in opened:
        assert [r for r in one.requests() if not r.startswith(f"{url}/")] == []
        assert not silent or one.complaints() == []
        one.close()


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Scripted:
    folder = tmp_path_factory.mktemp("web") / "automaton"
    follows = automaton.write(folder, SCRIPTS)
    return Scripted(load(str(folder), mode="baseline"), follows)


@pytest.fixture(scope="session")
def live(scripted: Scripted) -> Iterator[Live]:
    """Drafted by one that is right three times, then wrong: all origins occur."""
    running = start(scripted.with_drafter(right=3))
    yield running
    running.close()


@pytest.fixture
def serve(scripted: Scripted) -> Iterator[Callable[..., Live]]:
    """Servers of one's own; `verify` and `prefill` slow each step down by seconds."""
    running: list[Live] = []

    def make(verify: float = 0.0, prefill: float = 0.0, **options: Any) -> Live:
        target = Slow(scripted.pair.target, verify, prefill)
        running.append(start(scripted.with_drafter(target=target), **options))
        return running[-1]

    yield make
    for one in running:
        one.close()
