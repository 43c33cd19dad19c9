"""Log-probabilities: numpy's, and the same whether tokens were drafted or not; pieces are the text, token by token."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from scripted import Scripted, oracle

from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.decode.round import run_round
from mlx_dspark.decode.scores import score
from mlx_dspark.engine.settings import GenerateOptions
from mlx_dspark.models.drafter import NoDrafter


def test_scores_are_log_softmax_and_the_best_come_first() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (2, 9)).astype(np.float32)
    found = score(mx.array(logits), [4, 7], 3)
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for row, one, token in zip(expected, found, (4, 7), strict=True):
        assert one.token == token
        assert one.logprob == pytest.approx(row[token], abs=1e-5)
        assert [t for t, _ in one.top] == list(np.argsort(-row)[:3])
        assert [v for _, v in one.top] == pytest.approx(sorted(row, reverse=True)[:3], abs=1e-5)
    assert score(mx.array(logits), [4, 7], None) == ()
    assert [s.top for s in score(mx.array(logits), [4], 0)] == [()]


def test_scores_and_pieces_do_not_depend_on_drafting(pair_of) -> None:
    pair = pair_of("fp32")
    ids = pair.tokenizer.encode("count 1 2 3")

    def run(drafter, cap):
        session = pair.session(ids, GenerateOptions(max_tokens=24, max_draft=cap), SamplingParams(temperature=0))
        session.drafter, session.draft_state, session.top_logprobs = drafter, drafter.new_state(), 2
        session.prefill()
        rounds = []
        while session.finish is None:
            rounds += run_round(pair.target, [session])
        assert all("".join(r.pieces) == r.text and len(r.pieces) == len(r.tokens) for r in rounds)
        pieces = [p for r in rounds for p in r.pieces]
        return session.ids, [s for r in rounds for s in r.scores], pieces

    plain = run(NoDrafter(), 0)
    assert run(Scripted(plain[0], oracle), 5) == plain
    assert [s.token for s in plain[1]] == plain[0][len(ids) :]
