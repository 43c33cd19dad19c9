"""Streaming means the same as the whole text, wherever it is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_dspark import Pair
from mlx_dspark.decode.text import Detokenizer, ReasoningSplitter, StopMatcher


def chunks(text: str, cuts: list[int]) -> list[str]:
    borders = sorted({0, len(text), *[c % (len(text) + 1) for c in cuts]})
    return [text[a:b] for a, b in itertools.pairwise(borders)]


CUTS = st.lists(st.integers(0, 400), max_size=12)


@given(st.text("abx", max_size=40), st.lists(st.text("abx", min_size=1, max_size=4), max_size=3), CUTS)
def test_stop_strings_at_any_border(text: str, stops: list[str], cuts: list[int]) -> None:
    shown, stopped, matcher = "", False, StopMatcher(stops)
    for piece in chunks(text, cuts):
        safe, stopped = matcher.push(piece)
        shown += safe
        if stopped:
            break
    if not stopped:
        shown += matcher.flush()
    ends = [i for i in range(1, len(text) + 1) if any(text[:i].endswith(s) for s in stops)]
    assert stopped == bool(ends)
    if ends:
        longest = max(len(s) for s in stops if text[: ends[0]].endswith(s))
        assert shown == text[: ends[0] - longest]
    else:
        assert shown == text


def test_only_a_possible_stop_is_held_back() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("hello E") == ("hello ", False)
    assert matcher.push("x") == ("Ex", False)


@pytest.mark.parametrize(
    ("opened", "text", "reasoning", "answer"),
    [
        (True, "\nthink</think>\n\nanswer", "think", "answer"),
        (True, "never closed", "never closed", ""),
        (True, "<think>\ndoubled</think>ok", "doubled", "ok"),
        (False, "plain <b> text", "", "plain <b> text"),
        (False, "<think>late</think>then", "late", "then"),
        (True, "call <tool_call>{}</tool_call>", "call ", "<tool_call>{}</tool_call>"),
        (False, "</think>stray", "", "stray"),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_reasoning_is_split_whatever_the_chunks(
    opened: bool, text: str, reasoning: str, answer: str, step: int
) -> None:
    splitter, found = ReasoningSplitter(opened), {"reasoning": "", "text": ""}
    pieces = [p for i in range(0, len(text), step) for p in splitter.push(text[i : i + step])] + splitter.flush()
    for kind, piece in pieces:
        found[kind] += piece
    assert found == {"reasoning": reasoning, "text": answer}


@given(text=st.text(max_size=30))
def test_detokenising_never_shows_half_a_character(demo: Pair, text: str) -> None:
    ids, detokenizer = demo.tokenizer.encode(text), Detokenizer(demo.tokenizer)
    pieces = [detokenizer.push(i) for i in ids]
    assert "".join(pieces) == demo.tokenizer.decode(ids)
    assert "\ufffd" in text or not any("\ufffd" in p for p in pieces)


def test_a_broken_byte_run_does_not_silence_the_rest(demo: Pair) -> None:
    flag = demo.tokenizer.encode("🇩")
    detokenizer = Detokenizer(demo.tokenizer)
    text = "".join(detokenizer.push(i) for i in flag[:1] * 9 + demo.tokenizer.encode("recovered and going on"))
    assert text.endswith("going on")
