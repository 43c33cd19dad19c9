"""The prefix cache over HTTP, with a pair whose state matters, in the family's dialect: hits where they are due, cold texts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dialect
import pytest
from live import Live, start

from mlx_dspark import Pair
from mlx_dspark.checkpoint.tokenizer import Tokenizer

SYSTEM = "You count jars, tickets and marbles, and you answer in one short sentence. " * 40


@pytest.fixture(scope="module")
def servers(demo: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, Live]]:
    """(warm, cold), the latter without a cache."""
    folder = dialect.write(tmp_path_factory.mktemp("dialect"))
    pair = replace(demo, tokenizer=Tokenizer.from_folder(folder))
    warm, cold = start(pair, prefix_cache_gb=0.2), start(pair, prefix_cache_gb=0.0)
    yield warm, cold
    warm.close()
    cold.close()


def asked(server: Live, messages: list[dict[str, Any]], **more: Any) -> tuple[dict[str, Any], int, int]:
    """(the message, prompt tokens, cached tokens)"""
    body = {"messages": messages, "max_tokens": 24, "temperature": 0.7, "seed": 5, **more}
    reply = server.post("/v1/chat/completions", body).json()
    usage = reply["usage"]
    return reply["choices"][0]["message"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("thinking", [True, False])
def test_repeats_next_turns_edits_and_regenerations_go_on_from_the_cache(
    servers: tuple[Live, Live], thinking: bool
) -> None:
    warm, cold = servers
    switch = {"chat_template_kwargs": {"enable_thinking": thinking}}
    first = [{"role": "system", "content": f"{SYSTEM} {thinking}"}, said("There are 3 tickets in each jar.")]
    answer, tokens, cached = asked(warm, first, **switch)
    assert (answer, 0) == (asked(cold, first, **switch)[0], asked(cold, first, **switch)[2])
    assert (tokens > 600, cached) == (True, 0)

    again, _, cached = asked(warm, first, **switch)
    assert again == answer
    assert cached > tokens - 8

    second = [*first, answer, said("How many in 6 jars?")]
    reply, more, cached = asked(warm, second, **switch)
    assert reply == asked(cold, second, **switch)[0]
    assert tokens - 8 < cached < more

    edited = [*first, answer, said("How many in 7 jars?")]
    reply, _, cached = asked(warm, edited, **switch)
    assert reply == asked(cold, edited, **switch)[0]
    assert cached > tokens - 8

    other_seed, _, cached = asked(warm, second, seed=6, **switch)
    assert other_seed == asked(cold, second, seed=6, **switch)[0]
    assert cached > more - 8

    other_talk = [first[0], said("And marbles?")]
    reply, _, cached = asked(warm, other_talk, **switch)
    assert reply == asked(cold, other_talk, **switch)[0]
    assert cached > 600


@pytest.mark.parametrize("max_draft", [0, 1, 3, 7])
def test_every_draft_length_and_cache_state_has_the_cold_plain_text(servers: tuple[Live, Live], max_draft: int) -> None:
    warm, cold = servers
    for how in ({"temperature": 0}, {"temperature": 1.0, "seed": 9, "top_p": 0.9}):
        talk = [said("What is 3 times 6? Explain it.")]
        for _ in range(2):
            plain, _, _ = asked(cold, talk, mode="baseline", **how)
            assert asked(warm, talk, max_draft=max_draft, **how)[0] == plain
            assert asked(warm, talk, max_draft=max_draft, **how)[0] == plain
            talk = [*talk, plain, said("Say it again.")]


def test_anthropics_usage_counts_what_was_read_from_the_cache(servers: tuple[Live, Live]) -> None:
    warm, _ = servers
    body = {"messages": [said(SYSTEM)], "max_tokens": 4}
    first, second = (warm.post("/v1/messages", body).json()["usage"] for _ in range(2))
    assert first["cache_read_input_tokens"] < 10  # an empty system block
    assert second["cache_read_input_tokens"] > 600
    totals = [u["cache_read_input_tokens"] + u["input_tokens"] for u in (first, second)]
    assert totals[0] == totals[1]
