"""Options as frozen dataclasses: a field owns its default, its help, its limits and its flag.

Command-line flags, settings and the option tables of the docs are made from these fields. Imports nothing heavy.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from mlx_dspark.errors import OptionError

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """What a field allows: inclusive `low`..`high`, or `choices`; `flag` replaces the spelling made from its name.

    `word` is how None is written.
    """

    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    flag: str | None = None
    metavar: str | None = None
    word: str | None = None


def option(default: T, text: str, **limits: Any) -> T:
    """A dataclass field with its Option; `limits` are Option's other fields."""
    meta = {"option": Option(text, **limits)}
    return dataclasses.field(default=default, metadata=meta)


def flag_of(field: dataclasses.Field[Any]) -> str:
    """The long flag of a field, `--max-tokens` for `max_tokens`."""
    spec: Option = field.metadata["option"]
    return spec.flag or "--" + field.name.replace("_", "-")


def check_options(settings: Any) -> None:
    """Raise OptionError unless every field of the dataclass instance lies within its Option (None always does)."""
    hints = get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is None or "option" not in field.metadata:
            continue
        _check(flag_of(field), field.metadata["option"], value, str(hints[field.name]))


def _check(flag: str, spec: Option, value: Any, hint: str) -> None:
    if spec.choices and value not in spec.choices:
        raise OptionError(f"{flag} is {value!r}, but it must be one of {', '.join(spec.choices)}")
    if spec.low is None and spec.high is None:
        return
    limits = f"between {spec.low:g} and {spec.high:g}" if spec.high is not None else f"at least {spec.low:g}"
    limits += f", or {spec.word}" if spec.word else ""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise OptionError(f"{flag} is {value!r}, but it must be a number {limits}")
    if "float" not in hint and not isinstance(value, int):
        raise OptionError(f"{flag} is {value!r}, but it must be a whole number {limits}")
    if value < (spec.low if spec.low is not None else -math.inf) or value > (
        spec.high if spec.high is not None else math.inf
    ):
        raise OptionError(f"{flag} is {value}, but it must be {limits}")


def worded(settings: Any) -> None:
    """Turn a word that stands for None into None, in a frozen dataclass that is being made."""
    for field in dataclasses.fields(settings):
        if "option" in field.metadata and (word := field.metadata["option"].word):
            value = getattr(settings, field.name)
            if isinstance(value, str) and value.strip().lower() == word:
                object.__setattr__(settings, field.name, None)
