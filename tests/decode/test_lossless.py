"""Drafted output is plain output, token for token: every drafter, cap, row count, format and sampling."""

from __future__ import annotations

import numpy as np
import pytest
from scripted import Scripted, liar, oracle, pattern, random_drafts
from simulate import FLAT, LINEAR

from mlx_dspark import Pair
from mlx_dspark.decode.auto import AutoCap
from mlx_dspark.decode.cap import CapPolicy, FixedCap, Moment
from mlx_dspark.decode.pace import GUESS, Pace
from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.decode.round import run_round
from mlx_dspark.decode.session import FRESH, Session
from mlx_dspark.decode.survival import Experience, Prior, Survival
from mlx_dspark.engine.settings import GenerateOptions
from mlx_dspark.models.drafter import Contest, DraftBlock, Drafter, NoDrafter
from mlx_dspark.models.lookup import Lookup

PROMPTS = ["def add(a, b):", "count 1 2 3 1 2 3 1 2", "x"]
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0),
    "sampled": SamplingParams(temperature=1.0, seed=5),
    "filtered": SamplingParams(temperature=0.8, top_k=40, top_p=0.9, min_p=0.01, seed=6),
    "penalised": SamplingParams(temperature=0, frequency_penalty=1.5, repetition_penalty=1.2, logit_bias={40: -100.0}),
    "both": SamplingParams(temperature=1.0, seed=7, presence_penalty=1.0, frequency_penalty=0.5),
}


def start(pair: Pair, prompt: str, drafter: Drafter, cap: int, how: SamplingParams, max_tokens: int = 40) -> Session:
    ids = pair.prompt_ids(prompt, GenerateOptions(chat_template=False))
    session = pair.session(ids, GenerateOptions(max_tokens=max_tokens, max_draft=cap), how)
    session.drafter, session.draft_state = drafter, drafter.new_state()
    session.prefill()
    return session


def run(pair: Pair, sessions: list[Session]) -> list[list[int]]:
    """Decode all sessions in shared rounds; finished ones leave the batch."""
    while open_ones := [s for s in sessions if s.finish is None]:
        run_round(pair.target, open_ones)
    return [s.ids for s in sessions]


def plain(pair: Pair, prompt: str, how: SamplingParams, max_tokens: int = 40) -> list[int]:
    return run(pair, [start(pair, prompt, NoDrafter(), 0, how, max_tokens)])[0]


def drafters(pair: Pair, ids: list[int]) -> dict[str, Drafter]:
    return {
        "oracle": Scripted(ids, oracle),
        "liar": Scripted(ids, liar),
        "random": Scripted(ids, random_drafts(3)),
        "pattern": Scripted(ids, pattern([7, 0, 2, 7, 1, 5])),
        "lookup": Lookup(shortest=1),
        "dspark": pair.drafter,
        "lookup+dspark": Contest([Lookup(), pair.drafter]),
    }


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("form", ["fp32", "bf16", "4-bit"])
@pytest.mark.slow
def test_every_drafter_and_cap_gives_the_plain_tokens(pair_of, form: str, how: str) -> None:
    pair = pair_of(form)
    expected = plain(pair, PROMPTS[0], SAMPLINGS[how])
    for name, drafter in drafters(pair, expected).items():
        for cap in range(1, 8):
            got = run(pair, [start(pair, PROMPTS[0], drafter, cap, SAMPLINGS[how])])[0]
            assert got == expected, (name, cap)


@pytest.mark.parametrize("how", ["greedy", "sampled"])
@pytest.mark.parametrize("form", ["fp32", "bf16", "4-bit"])
def test_rows_in_one_batch_equal_their_solo_runs(pair_of, form: str, how: str) -> None:
    pair = pair_of(form)
    expected = [plain(pair, p, SAMPLINGS[how], 20 + 7 * i) for i, p in enumerate(PROMPTS)]
    for cap in (1, 4, 7):
        sessions = []
        for i, (prompt, ids) in enumerate(zip(PROMPTS, expected, strict=True)):
            names = ["pattern", "dspark", "lookup"]
            sessions.append(start(pair, prompt, drafters(pair, ids)[names[i]], cap, SAMPLINGS[how], 20 + 7 * i))
        assert run(pair, sessions) == expected


def learning(drafter: Drafter, table: object = LINEAR) -> AutoCap:
    """The learning cap over simulated costs, for whatever a drafter calls itself."""
    survivals = {source: Survival(Experience(Prior(blind=(1.5,)))) for source in drafter.sources}
    return AutoCap(Pace(table, trusted=table is not GUESS), survivals)  # type: ignore[arg-type]


class Whimsical(FixedCap):
    """Asks for, keeps and lets win whatever it likes."""

    def __init__(self, seed: int):
        super().__init__(7)
        self._random = np.random.default_rng(seed)

    def ask(self, now: Moment) -> int:
        return int(self._random.integers(0, now.room + 1))

    def wanted(self, source: str, best: DraftBlock) -> int:
        return int(self._random.integers(0, 8))

    def better(self, found: DraftBlock, best: DraftBlock) -> DraftBlock:
        return found if self._random.random() < 0.5 else best

    def trim(self, block: DraftBlock) -> DraftBlock:
        return block.cut(int(self._random.integers(0, len(block) + 1)))


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("form", ["fp32", "bf16", "4-bit"])
def test_a_cap_that_learns_or_guesses_changes_no_token(pair_of, form: str, how: str) -> None:
    pair = pair_of(form)
    expected = plain(pair, PROMPTS[0], SAMPLINGS[how])
    for seed, (name, drafter) in enumerate(drafters(pair, expected).items()):
        caps: list[CapPolicy] = [learning(drafter), learning(drafter, FLAT), learning(drafter, GUESS), Whimsical(seed)]
        for cap in caps:
            session = start(pair, PROMPTS[0], drafter, 7, SAMPLINGS[how])
            session.cap = cap
            assert run(pair, [session])[0] == expected, (name, type(cap))


@pytest.mark.parametrize("form", ["fp32", "4-bit"])
def test_learning_caps_share_rounds(pair_of, form: str) -> None:
    """Rows whose caps ask, trim and park apart from each other."""
    pair = pair_of(form)
    expected = [plain(pair, p, SAMPLINGS["greedy"], 20 + 7 * i) for i, p in enumerate(PROMPTS)]
    for again in range(4):
        sessions = []
        for i, (prompt, ids) in enumerate(zip(PROMPTS, expected, strict=True)):
            drafter = drafters(pair, ids)[["pattern", "dspark", "lookup+dspark"][i]]
            session = start(pair, prompt, drafter, 7, SAMPLINGS["greedy"], 20 + 7 * i)
            session.cap = Whimsical(again) if again > 1 else learning(drafter)
            sessions.append(session)
        assert run(pair, sessions) == expected


def test_a_drafter_is_told_of_every_token_once_whenever_it_drafts(pair_of) -> None:
    """After rounds without drafts its state is that of one that was told round by round, so its drafts are the same."""
    pair = pair_of("fp32")
    blocks: list[list[list[int]]] = []
    for pause in (0, 9):
        session = start(pair, PROMPTS[0], pair.drafter, 0, SAMPLINGS["greedy"])
        for _ in range(12):
            if not pause:
                session.catch_up()
            run_round(pair.target, [session])
        session.cap = FixedCap(7)
        request = session.draft_request()
        blocks.append([block.ids() for block in pair.drafter.propose([request])])
        assert session.draft_state.position == session.position  # type: ignore[attr-defined]
    assert blocks[0] == blocks[1]


class Rester(FixedCap):
    """Asks for drafts every 50 rounds and says so beforehand."""

    resting = 0

    def ask(self, now: Moment) -> int:
        self.resting = (self.resting or 50) - 1
        return 0 if self.resting else min(4, now.room)


def test_a_drafter_that_rests_hears_the_last_rows_alone(pair_of, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is sure to rest for long nothing is tapped; it is up to date when it is asked, and no token changes."""
    pair, told, tapped, verify = pair_of("fp32"), [], [], pair_of("fp32").target.verify
    expected = plain(pair, PROMPTS[0], SAMPLINGS["greedy"], 150)
    session = start(pair, PROMPTS[0], pair.drafter, 7, SAMPLINGS["greedy"], 150)
    observe = type(pair.drafter).observe

    def hear(self, state, tokens, position, taps) -> None:  # type: ignore[no-untyped-def]
        told.append((len(tokens), {int(rows.shape[0]) for rows in taps.values()}))
        observe(self, state, tokens, position, taps)
        assert state.position == session.position

    def spy(state, blocks, taps):  # type: ignore[no-untyped-def]
        tapped.append(bool(taps))
        return verify(state, blocks, taps)

    monkeypatch.setattr(type(pair.drafter), "observe", hear)
    monkeypatch.setattr(pair.target, "verify", spy)
    session.cap, session.stops.eos_ids = Rester(4), frozenset()
    assert run(pair, [session])[0][: len(expected)] == expected
    assert [rows for _, rows in told] == [{FRESH}] * len(told)
    assert told
    assert not all(tapped)
    assert any(tapped)


def test_an_oracle_is_accepted_in_full_and_a_liar_never(pair_of) -> None:
    pair = pair_of("fp32")
    ids = plain(pair, PROMPTS[0], SAMPLINGS["greedy"], 33)
    session = start(pair, PROMPTS[0], Scripted(ids, oracle), 7, SAMPLINGS["greedy"], 33)
    lengths = []
    while session.finish is None:
        lengths.append(run_round(pair.target, [session])[0])
    assert [len(r.tokens) for r in lengths] == [1, 8, 8, 8, 8]  # the first round makes the first anchor
    session = start(pair, PROMPTS[0], Scripted(ids, liar), 7, SAMPLINGS["greedy"], 33)
    assert all(run_round(pair.target, [session])[0].accepted == 0 for _ in range(10))


@pytest.mark.parametrize("cap", range(8))
def test_the_token_limit_holds_inside_a_block(pair_of, cap: int) -> None:
    pair = pair_of("fp32")
    whole = plain(pair, PROMPTS[0], SAMPLINGS["greedy"], 30)
    begin = len(pair.tokenizer.encode(PROMPTS[0]))
    for limit in range(1, 21):
        session = start(pair, PROMPTS[0], Scripted(whole, oracle), cap, SAMPLINGS["greedy"], limit)
        assert run(pair, [session])[0] == whole[: begin + limit]
        assert session.finish == "length"


@pytest.mark.parametrize("cap", [0, 3, 7])
def test_an_eos_inside_a_block_ends_everything(pair_of, cap: int) -> None:
    pair = pair_of("fp32")
    whole = plain(pair, PROMPTS[0], SAMPLINGS["greedy"], 30)
    begin = len(pair.tokenizer.encode(PROMPTS[0]))
    for offset in range(10):
        eos = whole[begin + offset]
        first = whole.index(eos, begin)
        session = start(pair, PROMPTS[0], Scripted(whole, oracle), cap, SAMPLINGS["greedy"], 30)
        session.stops.eos_ids = frozenset({eos})
        assert run(pair, [session])[0] == whole[: first + 1]
        assert session.finish == "stop"
        assert session.stops.count == first + 1 - begin


def test_prefill_chunks_do_not_change_the_answer(pair_of) -> None:
    pair = pair_of("4-bit")
    prompt = "abcdefghij" * 6 + "wxyz"
    results = []
    for chunk in (1, 2, 3, 5, 16, 63, 64, 65):
        ids = pair.prompt_ids(prompt, GenerateOptions(chat_template=False))
        session = pair.session(ids, GenerateOptions(max_tokens=24, max_draft=4), SAMPLINGS["greedy"])
        session.prefill(chunk)
        results.append(run(pair, [session])[0])
    assert all(r == results[0] for r in results)


def test_cancel_ends_before_the_next_round(pair_of) -> None:
    pair = pair_of("fp32")
    session = start(pair, PROMPTS[0], NoDrafter(), 0, SAMPLINGS["greedy"])
    session.cancel()
    assert session.finish == "cancelled"


@pytest.mark.slow
def test_the_embedded_pair_on_real_prompts(demo: Pair) -> None:
    for prompt in ("Define the verb 'run'.", "def is_even(n):", "There are 3 jars with 4 coins. How many coins?"):
        for settings in ({"temperature": 0}, {"temperature": 1.0, "seed": 11}):
            expected = demo.generate(prompt, max_tokens=48, max_draft=0, **settings)
            for cap in (1, 3, 7):
                got = demo.generate(prompt, max_tokens=48, max_draft=cap, **settings)
                assert (got.tokens, got.text, got.finish_reason) == (
                    expected.tokens,
                    expected.text,
                    expected.finish_reason,
                )
    assert demo.generate("There are 3 tickets in each jar. How many in 6 jars?", max_draft=7).accept_length > 1
