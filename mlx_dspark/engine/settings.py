"""What a user may set when loading a pair and when generating. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from mlx_dspark.errors import OptionError
from mlx_dspark.options import check_options, option, worded

MODES = ("auto", "dspark", "lookup", "baseline")


@dataclass(frozen=True)
class LoadOptions:
    """Which pair to load and how to hold it."""

    model: str = option("demo", "Target: a local folder, a hub repository, or 'demo', the embedded pair.")
    drafter: str | None = option(
        None, "DSpark drafter: a folder or repository (default: the one known for the target)."
    )
    mode: str = option(
        "auto",
        "How to draft: auto (DSpark where a drafter is known, else plain), dspark, lookup (copies from the context) "
        "or baseline (never).",
        choices=MODES,
    )
    lookup_drafts: bool | None = option(
        None,
        "Also draft by copying n-grams from the context where one matches (default: as known to pay for the pair).",
    )
    drafter_bits: int | None = option(
        None,
        "Hold the drafter's matrices in 4 or 8 bits, or 0 as stored (default: 4, on a CPU 0 below 1,024 hidden units).",
        low=0,
        high=8,
    )
    dtype: str = option(
        "auto",
        "Activations: auto is the checkpoint's own on a GPU and float32 on a CPU.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )

    calibrate: bool = option(
        True, "Measure once what drafting costs on this machine; without, that is learnt while decoding."
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.drafter_bits not in (None, 0, 4, 8):
            raise OptionError(f"--drafter-bits is {self.drafter_bits}, but it must be 0, 4 or 8")


@dataclass(frozen=True)
class GenerateOptions:
    """One answer: where it stops, how it drafts, how the prompt is put."""

    max_tokens: int = option(512, "Most tokens to generate.", low=1, high=1_000_000)
    max_draft: int | None = option(
        None,
        "Drafts a round: auto takes what pays, a number pins it, 0 drafts nothing.",
        low=0,
        high=64,
        word="auto",
    )
    stop: tuple[str, ...] = option((), "Stop before this text; may be given several times.")
    system: str | None = option(None, "A system message in front of the prompt.")
    thinking: bool | None = option(None, "Let the model think first, or not (default: the chat template's own).")
    chat_template: bool = option(True, "Put the prompt through the checkpoint's chat template.", flag="--chat-template")

    def __post_init__(self) -> None:
        worded(self)
        check_options(self)
        if any(not s for s in self.stop):
            raise OptionError("--stop is an empty text, but it must have at least one character")
