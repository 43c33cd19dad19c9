"""Who decides a sampling field, and which values are refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.errors import ConfigError, OptionError

CHECKPOINT = {"temperature": 1.0, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}


def test_nothing_given_is_none_and_greedy() -> None:
    params = SamplingParams()
    assert all(getattr(params, f.name) is None for f in fields(params))
    assert params.greedy
    with pytest.raises(FrozenInstanceError):
        params.seed = 1  # type: ignore[misc]


def test_without_any_say_decoding_is_greedy_and_everything_off() -> None:
    assert SamplingParams().with_defaults({}) == SamplingParams(
        temperature=0, top_k=0, top_p=1, min_p=0, repetition_penalty=1
    )


def test_request_beats_checkpoint_beats_greedy() -> None:
    assert SamplingParams().with_defaults(CHECKPOINT) == SamplingParams(**CHECKPOINT)
    given = {"temperature": 0.5, "top_k": 0, "top_p": 0.5, "min_p": 0, "repetition_penalty": 1, "seed": 9}
    assert SamplingParams(**given).with_defaults(CHECKPOINT) == SamplingParams(**given)
    mixed = SamplingParams(top_p=0.5).with_defaults({"temperature": 0.7, "top_k": None, "eos_token_id": 2, "seed": 5})
    assert (mixed.temperature, mixed.top_k, mixed.top_p, mixed.seed) == (0.7, 0, 0.5, None)


def test_temperature_zero_is_greedy_whatever_the_checkpoint_says() -> None:
    assert SamplingParams(temperature=0).with_defaults(CHECKPOINT).greedy
    assert not SamplingParams().with_defaults(CHECKPOINT).greedy


@pytest.mark.parametrize(("key", "value"), [("temperature", -1), ("temperature", "hot"), ("top_k", -1), ("top_k", 1.5),
                                            ("top_p", 0), ("top_p", 2), ("min_p", 1.1), ("repetition_penalty", 0)])  # fmt: skip
def test_a_checkpoint_value_out_of_range_is_named_unless_the_request_decides(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"generation_config\.json: {key} is .*--{key.replace('_', '-')}$"):
        SamplingParams().with_defaults({key: value})
    own = SamplingParams(**{key: CHECKPOINT[key]})
    assert getattr(own.with_defaults({key: value}), key) == CHECKPOINT[key]


def test_only_a_sampled_request_without_a_seed_gets_one() -> None:
    assert SamplingParams(temperature=1).settled(5).seed == 5
    assert SamplingParams(temperature=1, seed=0).settled(5).seed == 0
    assert SamplingParams(temperature=0).settled(5).seed is None


@pytest.mark.parametrize("good", [{"temperature": 100}, {"top_k": 0}, {"top_k": 10**12}, {"top_p": 1}, {"min_p": 1},
                                  {"seed": 2**63 - 1}, {"presence_penalty": -2}, {"frequency_penalty": 2},
                                  {"repetition_penalty": 0.01}, {"logit_bias": {0: -100, 3: 2.5}}])  # fmt: skip
def test_the_limits_themselves_are_allowed(good: dict[str, Any]) -> None:
    SamplingParams(**good)


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"temperature": 101}, {"temperature": float("nan")}, {"top_p": 0},
                                 {"top_p": 1.5}, {"top_k": -1}, {"top_k": 2.5}, {"top_k": True}, {"min_p": -0.1},
                                 {"seed": -1}, {"seed": 2**63}, {"presence_penalty": -2.1}, {"frequency_penalty": 3},
                                 {"repetition_penalty": 0.001}])  # fmt: skip
def test_values_outside_the_limits_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="--" + next(iter(bad)).replace("_", "-")):
        SamplingParams(**bad)


@pytest.mark.parametrize("bias", [{-1: 1.0}, {"5": 1.0}, {True: 1.0}, {5: float("nan")}, {5: -1e7}, {5: "x"}])
def test_a_bias_that_names_no_token_or_no_number_is_refused(bias: Any) -> None:
    with pytest.raises(OptionError, match="logit_bias"):
        SamplingParams(logit_bias=bias)


def test_no_mlx_is_imported() -> None:
    code = "import sys, mlx_dspark.decode.params; sys.exit('mlx.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
