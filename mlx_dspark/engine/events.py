"""What goes into the engine and what comes out: a Job, then its events in order. Knows no arrays and no HTTP.

Started, any number of Prefilled, any number of Advanced, then exactly one of Finished or Failed. A job that is
cancelled while it waits has only the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.decode.round import Round
from mlx_dspark.engine.result import Result
from mlx_dspark.engine.settings import GenerateOptions


@dataclass(frozen=True)
class Job:
    """A prompt to continue. `marks` are prompt positions that other prompts are likely to share up to."""

    ids: tuple[int, ...]
    options: GenerateOptions
    sampling: SamplingParams
    marks: tuple[int, ...] = ()
    top_logprobs: int | None = None


@dataclass(frozen=True)
class Started:
    """The job left the queue; `cached_tokens` of its prompt come from the prefix cache."""

    cached_tokens: int


@dataclass(frozen=True)
class Prefilled:
    """The target has consumed `done` of the prompt's `total` tokens."""

    done: int
    total: int


@dataclass(frozen=True)
class Advanced:
    """A round was decoded."""

    round: Round


@dataclass(frozen=True)
class Finished:
    """The answer is complete or was cancelled (`result.finish_reason`); `stop` is the stop string that ended it.

    `first_token_seconds` counts from submission, the wait in the queue included; 0 without a token.
    """

    result: Result
    cached_tokens: int
    first_token_seconds: float
    stop: str | None = None


@dataclass(frozen=True)
class Failed:
    """Something broke while this job ran; the engine goes on."""

    message: str


Event = Started | Prefilled | Advanced | Finished | Failed
Listener = Callable[[Event], None]
