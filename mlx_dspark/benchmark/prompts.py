"""The prompts that are measured: the built-in suite or a user's own file, by kind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_dspark.errors import OptionError

SUITE = Path(__file__).parent / "prompts.jsonl"


@dataclass(frozen=True)
class Prompt:
    """One question; `index` counts within its kind from 0. `messages` are chat messages."""

    kind: str
    index: int
    messages: tuple[Mapping[str, Any], ...]

    @property
    def text(self) -> str:
        """The last message alone, for checkpoints without a chat template."""
        return str(self.messages[-1]["content"])


def read_prompts(path: Path, kinds: Sequence[str], per_kind: int | None = None) -> list[Prompt]:
    """Prompts of these kinds, in their order. OptionError names the line that is no prompt, or a kind without one."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"--prompts {path} cannot be read ({error}); give a UTF-8 file of JSON lines") from None
    found: dict[str, list[Prompt]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            kind, messages = _parsed(path, number, line)
            group = found.setdefault(kind, [])
            group.append(Prompt(kind, len(group), messages))
    absent = [kind for kind in kinds if kind not in found]
    if absent:
        have = ", ".join(found) or "none"
        raise OptionError(f"--kinds has {absent[0]!r}, but the kinds of prompts in {path.name} are {have}")
    return [prompt for kind in kinds for prompt in found[kind][:per_kind]]


def _parsed(path: Path, number: int, line: str) -> tuple[str, tuple[Mapping[str, Any], ...]]:
    try:
        value = json.loads(line)
        kind = value["kind"]
        messages = value["messages"] if "messages" in value else [{"role": "user", "content": value["prompt"]}]
        if _well_formed(kind, messages):
            return kind, tuple(messages)
    except (ValueError, KeyError, TypeError):
        pass
    raise OptionError(
        f'--prompts {path}, line {number}, is no prompt; a line is {{"kind": "code", "prompt": "..."}}, or has '
        '"messages" in place of "prompt"'
    )


def _well_formed(kind: Any, messages: Any) -> bool:
    """A kind that can be named on the command line, and messages with text."""
    named = isinstance(kind, str) and kind.strip() == kind != "" and "," not in kind
    listed = isinstance(messages, list) and bool(messages)
    return named and listed and all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages)
