"""What requests may hold: strict pydantic models, and the tables of fields accepted without effect or refused.

Every number has a type and a range. A field no table and no model knows is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from mlx_dspark.decode.params import SamplingParams
from mlx_dspark.errors import OptionError
from mlx_dspark.server.errors import ApiError

M = TypeVar("M", bound="Request")
Temperature = Annotated[float, Field(ge=0, le=2)]
Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
StopText = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Stops = Annotated[list[StopText], Field(max_length=16)]


class Request(BaseModel):
    """What every generating route shares. `max_draft` and `mode` are this server's own."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    seed: int | None = None  # any whole number: what counts is its value modulo 2^63
    max_draft: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] | None = None
    mode: Literal["auto", "dspark", "lookup", "baseline"] | None = None

    @property
    def limit(self) -> int | None:
        """Most tokens to generate, if the request says."""
        return None

    @property
    def stop_texts(self) -> tuple[str, ...]:
        return ()

    def sampling(self) -> SamplingParams:
        """Raises ApiError where a combination is not allowed."""
        values = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(0, self.top_k),
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "seed": None if self.seed is None else self.seed % 2**63,
            **self.more_sampling(),
        }
        if values["top_p"] == 0:  # the likeliest token alone
            values["top_p"], values["top_k"] = None, 1
        try:
            return SamplingParams(**values)
        except OptionError as error:
            raise ApiError(400, str(error)) from None

    def more_sampling(self) -> dict[str, Any]:
        return {}


class StreamOptions(BaseModel):
    """`include_obfuscation` asks for padding against eavesdroppers; none is added."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class OpenAIRequest(Request):
    """Fields of chat and text completions; `stream_rounds` is this server's own."""

    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    stop: StopText | Stops | None = None
    n: int | None = None
    stream_options: StreamOptions | None = None
    stream_rounds: bool | None = None
    max_tokens: Count | None = None

    @field_validator("n")
    @classmethod
    def _one(cls, value: int | None) -> int | None:
        if value not in (None, 1):
            raise ValueError("must be 1: this server gives one choice a request")
        return value

    @field_validator("logit_bias")
    @classmethod
    def _ids(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for key in value or {}:
            if not (key.isascii() and key.isdigit() and len(key) < 10):
                raise ValueError(f"must map token ids to numbers, and {key[:40]!r} is no id")
        return value

    @property
    def limit(self) -> int | None:
        return self.max_tokens

    @property
    def stop_texts(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def more_sampling(self) -> dict[str, Any]:
        bias = {int(k): float(v) for k, v in (self.logit_bias or {}).items()} or None
        return {
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": bias,
        }


def validated(kind: type[M], body: Mapping[str, Any], inert: frozenset[str], refused: Mapping[str, Any]) -> M:
    """The request without its inert fields. ApiError 400 names the field at fault.

    `refused` maps names to the values that ask for nothing (a tuple); any other value is refused.
    """
    for name, harmless in refused.items():
        if name in body and body[name] is not None and body[name] not in harmless:
            raise ApiError(400, f"{name} is not supported by this server; leave it out", param=name)
    wanted = {k: v for k, v in body.items() if k not in inert and k not in refused}
    try:
        return kind.model_validate(wanted)
    except ValidationError as error:
        raise _refusal(kind, wanted, error) from None


def _refusal(kind: type[BaseModel], body: Mapping[str, Any], error: ValidationError) -> ApiError:
    def rank(one: Any) -> tuple[bool, int]:
        """What is there and wrong first; of a union's branches the one that came furthest."""
        return one["type"] != "missing", _path(body, one).count(".")

    first = max(error.errors(include_url=False), key=rank)
    path = _path(body, first)
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(kind.model_fields)) if len(path.split(".")) == 1 else ""
        return ApiError(
            400, f"{path} is no field this server knows{'; known are ' + known if known else ''}", param=path
        )
    if first["type"] == "missing":
        return ApiError(400, f"{path} is missing; it is required", param=path)
    reason = first["msg"].removeprefix("Value error, ")
    reason = reason[0].lower() + reason[1:]
    if not reason.startswith("must"):
        reason = f"is refused: {reason}"
    return ApiError(400, f"{path} {reason} (it is {shown(first['input'])})", param=path)


def _path(body: Any, error: Any) -> str:
    """The place in the body, without the union branches pydantic names on the way."""
    loc, parts, at = error["loc"], [], body
    for index, part in enumerate(loc):
        inside = (isinstance(at, Mapping) and part in at) or (isinstance(at, list) and isinstance(part, int))
        if inside:
            at = at[part]
            parts.append(str(part))
        elif index == len(loc) - 1 and error["type"] == "missing":
            parts.append(str(part))
    return ".".join(parts) or str(loc[0])


def shown(value: Any) -> str:
    """A value in few characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
