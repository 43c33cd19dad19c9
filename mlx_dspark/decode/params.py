"""How tokens are picked, as a user sets it: request over generation_config.json over greedy. Imports nothing heavy.

Values are checked when an instance is made, so whoever holds one need not check again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mlx_dspark.errors import ConfigError, OptionError
from mlx_dspark.options import check_options, option

# What generation_config.json may decide, and what holds where it does not either: greedy, everything else off.
PLAIN = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
LARGEST_BIAS = 1e6  # logits stay far inside float32 at any temperature


@dataclass(frozen=True)
class SamplingParams:
    """None is "not said": then generation_config.json decides, and without it decoding is greedy."""

    temperature: float | None = option(None, "0 is greedy (default: the checkpoint's, else 0).", low=0, high=100)
    top_k: int | None = option(None, "Sample among the k likeliest tokens; 0 is off.", low=0)
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
            raise OptionError("--top-p is 0, but it must be above 0 (for the likeliest token: --temperature 0)")
        for token, value in (self.logit_bias or {}).items():
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise OptionError(f"logit_bias names the token {token!r}, but a token id is a whole number from 0 on")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= LARGEST_BIAS:
                raise OptionError(f"logit_bias of token {token} is {value!r}, but it must be within ±{LARGEST_BIAS:g}")

    @property
    def greedy(self) -> bool:
        return not self.temperature

    def with_defaults(self, generation_config: Mapping[str, Any]) -> SamplingParams:
        """Fields not given come from generation_config.json, else are plain. ConfigError names a key out of range."""
        filled: dict[str, Any] = {}
        for key, plain in PLAIN.items():
            if getattr(self, key) is None:
                value = generation_config.get(key)
                filled[key] = plain if value is None else _allowed(key, value)
        return replace(self, **filled)

    def settled(self, default_seed: int) -> SamplingParams:
        """Where tokens are sampled and no seed was given, with this one."""
        return self if self.greedy or self.seed is not None else replace(self, seed=default_seed)


def _allowed(key: str, value: Any) -> Any:
    flag = "--" + key.replace("_", "-")
    try:
        SamplingParams(**{key: value})
    except OptionError as error:
        complaint = str(error).replace(flag, key, 1)
        raise ConfigError(f"generation_config.json: {complaint}; correct the file or give {flag}") from None
    return value
