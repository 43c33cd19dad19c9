"""The engine thread: order, bounds, cancelling, failures; and the prefix cache changes no token."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from mlx_dspark import Pair
from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.engine.engine import Engine, EngineBusy, EngineClosed, Ticket
from mlx_dspark.engine.events import Advanced, Event, Failed, Finished, Job, Started
from mlx_dspark.engine.settings import GenerateOptions

TEXT = "Once there was a small engine that "


class Client:
    """A submitted job and its events."""

    def __init__(self, engine: Engine, job: Job):
        self.events: queue.Queue[Event] = queue.Queue()
        self.ticket: Ticket = engine.submit(job, self.events.put)

    def until(self, kind: type) -> Event:
        while True:
            event = self.events.get(timeout=60)
            if isinstance(event, (kind, Finished, Failed)):
                return event

    def tokens(self) -> list[int]:
        event = self.until(Finished)
        assert isinstance(event, Finished), event
        return event.result.tokens


def job(pair: Pair, text: str = TEXT, max_tokens: int = 12, **more: object) -> Job:
    sampling = SamplingParams(**{k: v for k, v in more.items() if k in ("temperature", "seed")})  # type: ignore[arg-type]
    ids = tuple(pair.tokenizer.encode(text))
    marks = tuple(more.get("marks", ()))  # type: ignore[arg-type]
    return Job(ids, GenerateOptions(max_tokens=max_tokens, max_draft=more.get("max_draft")), sampling, marks)  # type: ignore[arg-type]


@pytest.fixture
def start(pair_of: Callable[[str], Pair]) -> Iterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def make(pair: Pair | None = None, **settings: int) -> Engine:
        engine = Engine(lambda: pair or pair_of("fp32"), **settings)
        engines.append(engine)
        engine.start()
        return engine

    yield make
    for engine in engines:
        engine.close(30)


def test_an_answer_is_that_of_the_pair(start, pair_of) -> None:
    engine = start()
    expected = pair_of("fp32").generate(TEXT, chat_template=False, max_tokens=12).tokens
    client = Client(engine, job(engine.pair))
    assert isinstance(client.until(Started), Started)
    assert client.tokens() == expected
    assert engine.counts == (0, 0)


def test_jobs_are_answered_in_order_and_the_queue_is_bounded(start) -> None:
    engine = start(max_queue=2)
    finished: list[int] = []
    clients = [Client(engine, job(engine.pair, max_tokens=200))]
    clients[0].until(Advanced)
    for index in (1, 2):
        listener = lambda event, i=index: finished.append(i) if isinstance(event, Finished) else None  # noqa: E731
        engine.submit(job(engine.pair, max_tokens=2), listener)
    with pytest.raises(EngineBusy, match="--max-queue is 2"):
        engine.submit(job(engine.pair), lambda event: None)
    clients[0].ticket.cancel()
    last = Client(engine, job(engine.pair)) if not engine.counts[1] else None
    while engine.counts != (0, 0):
        threading.Event().wait(0.01)
    assert finished == [1, 2]
    assert last is None or last.tokens()


@pytest.mark.parametrize("rows", [1, 3])
def test_concurrent_jobs_equal_their_solo_runs(start, pair_of, rows: int) -> None:
    pair, engine = pair_of("fp32"), start(rows=rows)
    prompts = ["a b c a b", "one two three", "x", "def f(x):"]
    expected = [pair.generate(p, chat_template=False, max_tokens=20).tokens for p in prompts]
    clients = [Client(engine, job(pair, p, 20)) for p in prompts]
    assert [c.tokens() for c in clients] == expected


def test_cancelling_a_running_and_a_waiting_job_ends_both(start) -> None:
    engine = start()
    running, waiting = Client(engine, job(engine.pair, max_tokens=3000)), Client(engine, job(engine.pair))
    running.until(Advanced)
    waiting.ticket.cancel()
    event = waiting.until(Finished)
    assert isinstance(event, Finished)
    assert (event.result.finish_reason, event.result.tokens) == ("cancelled", [])
    running.ticket.cancel()
    event = running.until(Finished)
    assert isinstance(event, Finished)
    assert event.result.finish_reason == "cancelled"
    assert 0 < event.result.completion_tokens < 3000


def test_a_cancel_stops_a_long_prefill(start) -> None:
    engine = start()
    client = Client(engine, job(engine.pair, "abcdefgh" * 400, 1))
    client.until(Started)
    client.ticket.cancel()
    event = client.until(Finished)
    assert isinstance(event, Finished)
    assert event.result.tokens == []


def test_a_failure_fails_one_job_and_the_next_is_answered(start, pair_of) -> None:
    class Broken:
        def __init__(self, inner):
            self.inner, self.broken = inner, True

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def verify(self, *args):
            if self.broken:
                raise RuntimeError("the device is on fire")
            return self.inner.verify(*args)

    pair = pair_of("fp32")
    target = Broken(pair.target)
    engine = start(replace(pair, target=target))
    event = Client(engine, job(pair)).until(Finished)
    assert isinstance(event, Failed)
    assert "internal error" in event.message
    target.broken = False
    assert len(Client(engine, job(pair)).tokens()) == 12
    assert engine.stats.copy().finished["error"] == 1


def test_a_closed_engine_refuses_and_loading_errors_reach_the_caller(start) -> None:
    engine = start()
    client = Client(engine, job(engine.pair, max_tokens=3000))
    client.until(Advanced)
    engine.close(30)
    event = client.until(Finished)
    assert isinstance(event, Finished)
    assert event.result.finish_reason == "cancelled"
    with pytest.raises(EngineClosed):
        engine.submit(job(engine.pair), lambda event: None)

    def broken() -> Pair:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        Engine(broken).start()


@pytest.mark.parametrize("how", [{"temperature": 0}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize("max_draft", [0, 4])
def test_warm_answers_equal_cold_ones_bit_for_bit(start, pair_of, how, max_draft: int) -> None:
    pair = pair_of("fp32")
    cold, warm = start(), start(cache_bytes=1 << 28)
    system = "You are a very long system prompt. " * 12
    prompts = [system + "A", system + "A", system + "B", system + "B and more", system + "A", system[:50] + "?"]
    cached = []
    for prompt in prompts:
        asked = job(pair, prompt, 16, max_draft=max_draft, marks=(40, len(prompt) - 1), **how)
        client = Client(warm, asked)
        begun = client.until(Started)
        assert isinstance(begun, Started)
        cached.append(begun.cached_tokens)
        assert client.tokens() == Client(cold, asked).tokens()
    assert cached[0] == 0
    assert cached[1] == cached[4] == len(prompts[0]) - 1
    assert cached[2] >= 40
    assert cached[3] >= len(system)
    assert cached[5] == 40


def test_a_next_turn_goes_on_from_the_answers_own_state(start, pair_of) -> None:
    pair = pair_of("fp32")
    cold, warm = start(), start(cache_bytes=1 << 28)
    first = job(pair, TEXT, 20)
    answer = Client(warm, first).tokens()
    follow = replace(first, ids=(*first.ids, *answer, *pair.tokenizer.encode(" and then?")))
    client = Client(warm, follow)
    begun = client.until(Started)
    assert isinstance(begun, Started)
    assert begun.cached_tokens == len(first.ids) + len(answer) - 1
    assert client.tokens() == Client(cold, follow).tokens()


def test_with_a_prefill_grid_only_positions_on_it_are_reused(start, pair_of) -> None:
    class Gridded:
        prefill_grid = 64

        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

    pair = pair_of("fp32")
    engine = start(replace(pair, target=Gridded(pair.target)), cache_bytes=1 << 28)
    asked = job(pair, "word " * 60, 8, marks=(100, 200))
    answer = Client(engine, asked).tokens()
    for more, expected in ((asked.ids, 192), ((*asked.ids, *answer, 70), 192), (asked.ids[:150], 64)):
        client = Client(engine, replace(asked, ids=tuple(more)))
        begun = client.until(Started)
        assert isinstance(begun, Started)
        assert begun.cached_tokens == expected
        client.tokens()


def test_the_cache_stays_under_its_limit(start, pair_of) -> None:
    pair = pair_of("fp32")
    engine = start(cache_bytes=1_500_000)
    for index in range(30):
        Client(engine, job(pair, f"{index} prompt " * 20, 4, marks=(100,))).tokens()
        assert engine.cache.nbytes <= 1_500_000
    assert len(engine.cache) > 0
