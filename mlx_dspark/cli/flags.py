"""Options dataclasses -> typer parameters and back, so that a flag exists once: at its field."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from mlx_dspark.options import Option, flag_of


def option_fields(owner: type) -> Iterator[tuple[dataclasses.Field[Any], Option, Any]]:
    """(field, Option, type without None) of every field that has a flag."""
    hints = get_type_hints(owner)
    for field in dataclasses.fields(owner):
        if "option" in field.metadata:
            yield field, field.metadata["option"], _bare(hints[field.name])


def parameters(*owners: type, leave: Sequence[str] = ()) -> list[inspect.Parameter]:
    """One keyword parameter a field, its flag and help from the field's Option; limits are the dataclass's to check.

    `leave` names fields that a command sets itself.
    """
    return [_parameter(*found) for owner in owners for found in option_fields(owner) if found[0].name not in leave]


def argument(name: str, text: str) -> inspect.Parameter:
    """A required positional argument."""
    info = typer.Argument(help=text, metavar=name.upper(), show_default=False)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[str, info])


def rest(name: str, text: str) -> inspect.Parameter:
    """All words that are left."""
    info = typer.Argument(help=text, show_default=False)
    kind = Annotated[list[str] | None, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def command(function: Callable[..., None], params: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """`function(values)` as a typer callback with these parameters."""

    def call(**values: Any) -> None:
        function(values)

    call.__doc__ = function.__doc__
    call.__signature__ = inspect.Signature(list(params))  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in params}
    return call


def collect(owner: type, values: Mapping[str, Any]) -> Any:
    """The owner's dataclass from parsed values; lists become tuples. Raises OptionError outside the limits."""
    chosen = {f.name: _number(values[f.name], spec) for f, spec, _ in option_fields(owner) if f.name in values}
    return owner(**{k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items()})


def _number(value: Any, spec: Option) -> Any:
    """A flag that may be a word or a number arrives as text; what is neither stays, for the dataclass to refuse."""
    if spec.word and isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        return int(value)
    return value


def table(*owners: type, leave: Sequence[str] = ()) -> str:
    """The flags of these dataclasses as a Markdown table (README and docs are made from it)."""
    lines = ["| flag | default | meaning |", "|---|---|---|"]
    for owner in owners:
        for field, spec, kind in option_fields(owner):
            if field.name in leave:
                continue
            default = "" if field.default in (None, ()) else f"`{_shown(field.default)}`"
            default = f"`{spec.word}`" if spec.word and field.default is None else default
            lines.append(f"| `{_flags(field, kind)}` | {default} | {spec.help} |")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _flags(field: dataclasses.Field[Any], kind: Any) -> str:
    flag = flag_of(field)
    return f"{flag}/--no-{flag[2:]}" if kind is bool else flag


def _parameter(field: dataclasses.Field[Any], spec: Option, kind: Any) -> inspect.Parameter:
    many = get_origin(kind) is tuple
    default: Any = list(field.default) if many else field.default  # type: ignore[arg-type]
    annotation = list[get_args(kind)[0]] if many else kind if default is not None else kind | None  # type: ignore[misc]
    metavar = spec.metavar or ("|".join(spec.choices) if spec.choices else None)
    shown: Any = default not in (None, [])
    if spec.word and default is None:
        annotation, default, shown, metavar = str, spec.word, True, f"{spec.word}|N"
    info = typer.Option(_flags(field, kind), help=spec.help, metavar=metavar, show_default=shown)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, info]
    )


def _bare(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        (kind,) = [h for h in get_args(hint) if h is not type(None)]
        return kind
    return hint
