"""Streaming means the same as the whole text, wherever it is cut."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlx_dspark
from mlx_dspark.checkpoint.tokenizer import Tokenizer, TokenStream
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


def test_what_follows_a_stop_is_dropped_for_good() -> None:
    matcher = StopMatcher(["END", ""])
    assert matcher.push("a") == ("a", False)
    assert matcher.push("bENDcE") == ("b", True)
    assert matcher.push("more") == ("", True)
    assert matcher.flush() == ""


def test_overlapping_stops_end_at_the_first_end() -> None:
    assert StopMatcher(["bcde", "cd"]).push("abcde") == ("ab", True)
    assert StopMatcher(["d", "bcd"]).push("abcd") == ("a", True)
    matcher = StopMatcher(["abab!", "ba?"])
    assert [matcher.push(c)[0] for c in "ababa"] == ["", "", "", "", "ab"]
    assert matcher.flush() == "aba"


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


def whole(text: str, opened: bool) -> dict[str, str]:
    """What splitting means, on the whole text: one segment a tag, newlines after a think tag dropped."""
    found, kind, trim = {"reasoning": "", "text": ""}, "reasoning" if opened else "text", opened
    for part in re.split("(</?think>|<tool_call>)", text):
        if part in ("<think>", "</think>"):
            kind, trim = ("reasoning" if part == "<think>" else "text"), True
            continue
        if part == "<tool_call>" and kind == "reasoning":
            kind, trim = "text", False
        shown = part.lstrip("\n") if trim else part
        trim = trim and not shown
        found[kind] += shown
    return found


FRAGMENTS = st.sampled_from(
    ["<think>", "</think>", "<tool_call>", "\n", "<", "</", "think>", "<th", "ink>", "a", " b", "<<"]
)


@given(st.lists(FRAGMENTS, max_size=14).map("".join), st.booleans(), CUTS)
def test_reasoning_is_what_the_whole_text_means(text: str, opened: bool, cuts: list[int]) -> None:
    splitter, found = ReasoningSplitter(opened), {"reasoning": "", "text": ""}
    for kind, piece in [p for c in chunks(text, cuts) for p in splitter.push(c)] + splitter.flush():
        assert piece
        found[kind] += piece
    assert found == whole(text, opened)
    assert "<tool_call>" not in found["reasoning"]


def test_only_a_possible_tag_is_held_back() -> None:
    splitter = ReasoningSplitter(opened=False)
    assert splitter.push("a < b <thi") == [("text", "a < b ")]
    assert splitter.push("s") == [("text", "<this")]
    assert splitter.push("<tool_ca") == [("text", "<tool_ca")]  # ends nothing outside reasoning
    assert splitter.push("</thin") == []
    assert splitter.flush() == [("text", "</thin")]


def test_other_tags() -> None:
    splitter = ReasoningSplitter(False, "[THINK]", "[/THINK]")
    pieces = [p for c in "<think>[THINK]\nhm[/THINK]\n\nso" for p in splitter.push(c)] + splitter.flush()
    assert "".join(p for k, p in pieces if k == "reasoning") == "hm"
    assert "".join(p for k, p in pieces if k == "text") == "<think>so"


class Bytes:
    """A tokenizer of pieces of bytes, decoded as a byte-level one is: id i stands for `pieces[i]`."""

    def __init__(self, pieces: Sequence[bytes], probes: bool):
        self.pieces = [*pieces, b"\x80", b"\xbf"]
        self.probes = (len(pieces), len(pieces) + 1) if probes else (None, None)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace")

    def stream(self) -> TokenStream:
        return TokenStream(self.decode, *self.probes)


def cut_bytes(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *[c % (len(data) + 1) for c in cuts]})
    return [data[a:b] for a, b in itertools.pairwise(borders)]


NEAR = st.text("a \n\u00e9\u20ac\ud7ff\ufffd\U0001f1e9\U0001f1ea\U0010ffff", max_size=20) | st.text(max_size=20)


@given(NEAR, CUTS, st.integers(1, 2))
def test_characters_are_whole_however_the_tokens_cut_them(text: str, cuts: list[int], every: int) -> None:
    data = text.encode()
    tokens = cut_bytes(data, cuts if every == 2 else list(range(len(data))))
    detokenizer = Detokenizer(Bytes(tokens, probes=True))
    pieces = [detokenizer.push(i) for i in range(len(tokens))]
    assert "".join(pieces) == text
    consumed = itertools.accumulate(tokens, initial=b"")
    for shown, seen in zip(itertools.accumulate(pieces, initial=""), consumed, strict=True):
        assert shown == seen.decode(errors="ignore")  # all that is complete, at once


@given(
    st.lists(
        st.sampled_from([b"\xff", b"\x80", b"\xe2", b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\xed\xa0", b"a", "é".encode()])
    ),
    st.booleans(),
)
def test_broken_bytes_stream_as_they_decode(tokens: list[bytes], probes: bool) -> None:
    stub = Bytes([*tokens, b"."], probes)
    detokenizer = Detokenizer(stub)
    pieces = [detokenizer.push(i) for i in range(len(tokens) + 1)]
    if probes:
        assert "".join(pieces) == stub.decode(range(len(tokens) + 1))
    else:  # without knowing the bytes a broken run is only guessed at, but never withheld for long
        assert "".join(pieces).endswith("." if not tokens else tokens[-1].decode(errors="ignore")[-1:] + ".")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The embedded pair's: byte-level, 4096 tokens."""
    return Tokenizer.from_folder(Path(mlx_dspark.__file__).parent / "demo" / "target-4bit")


@given(text=NEAR)
def test_detokenising_never_shows_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    ids, detokenizer = tokenizer.encode(text), Detokenizer(tokenizer)
    pieces = [detokenizer.push(i) for i in ids]
    assert "".join(pieces) == tokenizer.decode(ids) == text
    assert "\ufffd" in text or not any("\ufffd" in p for p in pieces)


@given(ids=st.lists(st.integers(0, 4095), max_size=30))
def test_any_tokens_at_all_stream_as_they_decode(tokenizer: Tokenizer, ids: list[int]) -> None:
    ids += tokenizer.encode(" end")
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.push(i) for i in ids) == tokenizer.decode(ids)


def test_a_broken_byte_run_does_not_silence_the_rest(tokenizer: Tokenizer) -> None:
    half = tokenizer.encode("🇩")[:1]
    for ids in (half * 9, tokenizer.encode("🇩🇪")[:-1]):
        detokenizer, whole_ids = Detokenizer(tokenizer), ids + tokenizer.encode("recovered<|im_end|> and going on")
        assert "".join(detokenizer.push(i) for i in whole_ids) == tokenizer.decode(whole_ids)
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.push(i) for i in half) == ""
