"""A loaded target with its drafter and tokenizer: the Python API behind `generate`.

pair = load()                                # the embedded pair
result = pair.generate("Hi", max_tokens=32)  # Result
for part in pair.stream("Hi"): ...           # Part: text as it comes, one Round each
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from mlx_dspark.checkpoint.config import TargetConfig
from mlx_dspark.checkpoint.tokenizer import Tokenizer
from mlx_dspark.decode.auto import AutoCap
from mlx_dspark.decode.cap import CapPolicy, FixedCap
from mlx_dspark.decode.pace import GUESS, Pace
from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.decode.priors import prior_of
from mlx_dspark.decode.round import LazyClock, Round, run_round
from mlx_dspark.decode.sampling import Sampler
from mlx_dspark.decode.session import PREFILL_CHUNK, Session, StopRules
from mlx_dspark.decode.survival import Experience, Survival
from mlx_dspark.decode.text import Detokenizer, ReasoningSplitter, StopMatcher
from mlx_dspark.engine.calibration_store import Calibration
from mlx_dspark.engine.result import Result, Tally
from mlx_dspark.engine.settings import GenerateOptions
from mlx_dspark.errors import OptionError, PromptError
from mlx_dspark.models.drafter import Drafter, NoDrafter
from mlx_dspark.models.nemotron_h import NemotronH
from mlx_dspark.models.probe import WidthReport

Message = Mapping[str, Any]
Prompt = str | Sequence[Message]


@dataclass(frozen=True)
class Part:
    """What one round added to the answer: text and reasoning to show, and the Round itself (None while finishing)."""

    text: str
    reasoning: str
    round: Round | None


@dataclass(eq=False)
class Pair:
    """Weights shared by all answers. `load()` in engine/load.py makes one."""

    target: NemotronH
    drafter: Drafter
    tokenizer: Tokenizer
    config: TargetConfig
    widths: WidthReport
    eos_ids: frozenset[int]
    names: dict[str, str | None]
    nbytes: int
    key: Mapping[str, Any] = field(default_factory=dict)  # what its calibration is stored under
    calibration: Calibration | None = None
    undrafted: Drafter = field(default_factory=NoDrafter)
    _pace: Pace = field(init=False)
    _experience: dict[tuple[str, bool], Experience] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.use(self.calibration)

    def use(self, calibration: Calibration | None) -> None:
        """Decide by these costs from now on, or by what is learnt while decoding where there are none."""
        self.calibration = calibration
        self._pace = Pace(calibration.table) if calibration else Pace(GUESS, trusted=False)

    def prompt_ids(self, prompt: Prompt, options: GenerateOptions) -> list[int]:
        """Token ids of a text or of chat messages, through the chat template unless the options say no."""
        if not options.chat_template:
            if not isinstance(prompt, str):
                raise PromptError("messages need the chat template; give a text, or leave --chat-template on")
            return self.tokenizer.encode(prompt)
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
        if options.system is not None:
            messages.insert(0, {"role": "system", "content": options.system})
        switches = {} if options.thinking is None else {"enable_thinking": options.thinking}
        return self.tokenizer.chat_ids(messages, **switches)

    def session(self, ids: Sequence[int], options: GenerateOptions, sampling: SamplingParams) -> Session:
        """A sequence ready to be prefilled, drafting as the options say. Raises PromptError if it has no room."""
        session = self.plain_session(ids, options, sampling)
        session.cap = self._cap(options.max_draft, not session.sampler.params.greedy)
        return session

    def _cap(self, max_draft: int | None, sampled: bool) -> CapPolicy:
        """What decides how many drafts a round of one sequence gets."""
        if max_draft is not None or not self.drafter.sources:
            return FixedCap(max_draft or 0)
        for source in self.drafter.sources:
            if (source, sampled) not in self._experience:
                self._experience[source, sampled] = Experience(prior_of(source, sampled))
        survivals = {source: Survival(self._experience[source, sampled]) for source in self.drafter.sources}
        return AutoCap(self._pace, survivals)

    def plain_session(
        self, ids: Sequence[int], options: GenerateOptions, sampling: SamplingParams | None = None
    ) -> Session:
        """The same without drafts; greedy if `sampling` is None."""
        room = self.config.max_positions - len(ids)
        if room < 1:
            raise PromptError(
                f"the prompt has {len(ids)} tokens, but the model's context is {self.config.max_positions}; shorten it"
            )
        limit = min(options.max_tokens, room)
        stops = StopRules(self.eos_ids, limit, Detokenizer(self.tokenizer), StopMatcher(options.stop))
        wanted = sampling.with_defaults(self.config.sampling) if sampling else SamplingParams(temperature=0)
        sampler = Sampler(wanted.settled(secrets.randbits(32)), ids, self.target.vocab_size, self.target.likeliest)
        drafter = self.undrafted if options.max_draft == 0 else self.drafter
        return Session(self.target, drafter, sampler, stops, FixedCap(0), list(ids))

    def stream(
        self,
        prompt: Prompt,
        *,
        progress: Callable[[int, int], None] | None = None,
        clock: type[LazyClock] = LazyClock,
        tally: Tally | None = None,
        **settings: Any,
    ) -> Iterator[Part]:
        """Parts of the answer, one a round; `settings` are the fields of GenerateOptions and SamplingParams."""
        options, sampling = split_settings(settings)
        ids = self.prompt_ids(prompt, options)
        session = self.session(ids, options, sampling)
        splitter = ReasoningSplitter(opened=options.chat_template and self._opens_reasoning(ids))
        tally = tally if tally is not None else Tally()
        tally.start(prompt_tokens=len(ids))
        session.prefill(PREFILL_CHUNK, progress)
        while session.finish is None:
            (done,) = run_round(self.target, [session], clock)
            tally.add(done)
            yield _part(splitter.push(done.text), done)
        tally.end(session.finish)
        yield _part(splitter.flush(), None)

    def generate(self, prompt: Prompt, **settings: Any) -> Result:
        """The whole answer; keyword arguments as in `stream`."""
        tally = settings.pop("tally", None) or Tally()
        parts = list(self.stream(prompt, tally=tally, **settings))
        return self.result(tally, "".join(p.text for p in parts), "".join(p.reasoning for p in parts))

    def result(self, tally: Tally, text: str, reasoning: str) -> Result:
        """A finished tally with what this pair knows of itself."""
        return tally.result(
            text=text,
            reasoning=reasoning,
            mode=self.drafter.name,
            model=self.names["model"],
            drafter=self.names["drafter"],
            device=str(self.names["device"]),
            exact=self.widths.exact,
        )

    def _opens_reasoning(self, ids: Sequence[int]) -> bool:
        tail = self.tokenizer.decode(list(ids[-8:]))
        return tail.rfind("<think>") > tail.rfind("</think>")


def split_settings(settings: Mapping[str, Any]) -> tuple[GenerateOptions, SamplingParams]:
    """Keyword settings as the two dataclasses that own them; an unknown name is an OptionError."""
    owners = (GenerateOptions, SamplingParams)
    known = [{f.name for f in fields(owner)} for owner in owners]
    unknown = sorted(set(settings) - known[0] - known[1])
    if unknown:
        raise OptionError(f"{unknown[0]} is no setting; known are {', '.join(sorted(known[0] | known[1]))}")
    values = {k: v for k, v in settings.items() if k in known[0]}
    if isinstance(values.get("stop"), str):
        values["stop"] = (values["stop"],)
    elif "stop" in values:
        values["stop"] = tuple(values["stop"] or ())
    return GenerateOptions(**values), SamplingParams(**{k: v for k, v in settings.items() if k in known[1]})


def _part(pieces: Sequence[tuple[str, str]], done: Round | None) -> Part:
    text = "".join(piece for kind, piece in pieces if kind == "text")
    reasoning = "".join(piece for kind, piece in pieces if kind == "reasoning")
    return Part(text, reasoning, done)
