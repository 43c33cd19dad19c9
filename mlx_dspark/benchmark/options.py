"""What `benchmark` measures and where its results go. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from mlx_dspark.errors import OptionError
from mlx_dspark.options import check_options, option

MODES = ("dspark", "lookup", "dspark+lookup")
LARGEST_CAP = 64


@dataclass(frozen=True)
class BenchmarkOptions:
    """One measurement. Lists are given with commas; their parts are checked here."""

    trials: int = option(3, "Timed passes over all prompts, after a rehearsal that is not timed.", low=1, high=1000)
    kinds: str = option("chat,code,math", "Kinds of prompts, with commas.", metavar="KIND,KIND")
    caps: str | None = option(
        None,
        "Most drafts a round, with commas; auto is what decoding chooses by itself (default: auto,1,2,4 and the "
        "drafter's most).",
        metavar="CAP,CAP",
    )
    modes: str | None = option(
        None,
        f"How to draft, with commas: {', '.join(MODES)} (default: dspark, or lookup where there is no drafter).",
        metavar="MODE,MODE",
    )
    max_tokens: int = option(128, "Most tokens an answer.", low=2, high=1_000_000)
    per_kind: int | None = option(None, "Use only the first prompts of each kind.", low=1)
    prompts: str | None = option(
        None,
        'Other prompts than the built-in ones: a line of JSON each, {"kind": "code", "prompt": "..."}.',
        metavar="FILE",
    )
    thinking: bool = option(False, "Let the model think first.")
    temperature: float = option(0.0, "0 is greedy; above it plain and drafted runs share their seeds.", low=0, high=100)
    seed: int = option(0, "Seed of the sampled runs.", low=0, high=2**63 - 1)
    json: str | None = option(None, "Write everything measured to this file (- is standard output).", metavar="FILE")
    html: str | None = option(None, "Write the pair's page to this file.", metavar="FILE")
    markdown: str | None = option(
        None, "Write the tables as Markdown to this file (- is standard output).", metavar="FILE"
    )
    earlier: str | None = option(
        None, "Measure nothing: show what an earlier --json file holds.", flag="--from", metavar="FILE"
    )

    def __post_init__(self) -> None:
        check_options(self)
        for mode in self.mode_names():
            if mode not in MODES:
                raise OptionError(f"--modes has {mode!r}, but a mode is one of {', '.join(MODES)}")
        for cap in self.cap_names():
            if cap != "auto" and not (cap.isascii() and cap.isdigit() and 1 <= int(cap) <= LARGEST_CAP):
                raise OptionError(f"--caps has {cap!r}, but a cap is auto or a number from 1 to {LARGEST_CAP}")
        self.kind_names()

    def kind_names(self) -> tuple[str, ...]:
        return _parts("--kinds", self.kinds)

    def mode_names(self) -> tuple[str, ...]:
        """The modes that were given; empty where none were."""
        return () if self.modes is None else _parts("--modes", self.modes)

    def cap_names(self) -> tuple[str, ...]:
        """The caps that were given, auto or numbers; empty where none were."""
        caps = () if self.caps is None else _parts("--caps", self.caps)
        return tuple(dict.fromkeys(str(int(c)) if c.isascii() and c.isdigit() else c for c in caps))


def _parts(flag: str, text: str) -> tuple[str, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise OptionError(f"{flag} is {text!r}, but it must be names with commas between them, like a,b")
    return tuple(dict.fromkeys(parts))
