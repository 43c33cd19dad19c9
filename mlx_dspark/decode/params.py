"""How tokens are picked, as a user sets it. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mlx_dspark.errors import ConfigError, OptionError
from mlx_dspark.options import check_options, option

CHECKPOINT_KEYS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class SamplingParams:
    """None is "not said": then generation_config.json decides, and without it decoding is greedy."""

    temperature: float | None = option(None, "0 is greedy (default: the checkpoint's, else 0).", low=0, high=100)
    top_k: int | None = option(None, "Sample among the k likeliest tokens; 0 is off.", low=0, high=2**31)
    top_p: float | None = option(None, "Sample among the likeliest tokens of this total probability.", low=0, high=1)
    min_p: float | None = option(None, "Drop tokens less likely than this share of the likeliest.", low=0, high=1)
    seed: int | None = option(None, "Same seed, same text, with drafting or without.", low=0, high=2**63 - 1)
    presence_penalty: float | None = option(None, "Subtracted once from tokens already generated.", low=-2, high=2)
    frequency_penalty: float | None = option(None, "Subtracted for each time a token was generated.", low=-2, high=2)
    repetition_penalty: float | None = option(
        None, "Divides the logits of tokens seen in prompt or answer; 1 is off.", low=0.01, high=100
    )
    logit_bias: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.top_p == 0:
            raise OptionError("--top-p is 0, but it must be above 0; for the likeliest token use --temperature 0")

    @property
    def greedy(self) -> bool:
        return not self.temperature

    def with_defaults(self, checkpoint: Mapping[str, Any]) -> SamplingParams:
        """Fields not said taken from generation_config.json's keys."""
        given = {
            k: checkpoint[k] for k in CHECKPOINT_KEYS if getattr(self, k) is None and checkpoint.get(k) is not None
        }
        try:
            return replace(self, **given)
        except OptionError as error:
            raise ConfigError(f"generation_config.json: {str(error).removeprefix('--')}") from None

    def settled(self, seed: int) -> SamplingParams:
        """With a seed if none was said."""
        return self if self.seed is not None else replace(self, seed=seed)
