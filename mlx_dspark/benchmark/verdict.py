"""Is a run good? Its tokens must be the plain run's, all of them, made without an error and, where timed, without
swapping. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlx_dspark.benchmark.run import Run

CRASHED, DIFFERS, ENDS_EARLY, SWAPPED = "crashed", "differs", "ends early", "swapped"
UNCOMPARED = "not compared"
SWAP_LIMIT = 256
FAULT_LIMIT = 256
"""Pages (1 MiB of 4 KiB pages) swapped by the system, or read from the disk by this process, that a run may see."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with one run, and the particulars."""

    arm: str
    kind: str
    prompt: int
    trial: int
    what: str
    detail: str

    @property
    def lossy(self) -> bool:
        """Whether it concerns what came out rather than how it was timed."""
        return self.what != SWAPPED

    @property
    def sentence(self) -> str:
        when = f"trial {self.trial}" if self.trial else "rehearsal"
        return f"{self.arm}, {self.kind} prompt {self.prompt + 1}, {when}: {self.what} ({self.detail})"


def judge(run: Run, reference: Sequence[int] | None) -> Fault | None:
    """What is wrong with a run whose tokens should be `reference`'s; None says that nothing is.

    `reference` is None where the plain run itself broke: then nothing can be said for this one.
    """
    what, detail = _finding(run, reference)
    return Fault(run.arm, run.kind, run.prompt, run.trial, what, detail) if what else None


def _finding(run: Run, reference: Sequence[int] | None) -> tuple[str, str]:
    if run.error is not None:
        return CRASHED, run.error
    if reference is None:
        return UNCOMPARED, "plain decoding of this prompt crashed"
    same = _common(run.tokens, reference)
    if same < len(run.tokens):
        theirs = f"plain has {reference[same]}" if same < len(reference) else "plain has ended"
        return DIFFERS, f"token {same + 1} is {run.tokens[same]}, {theirs}"
    if same < len(reference):
        return ENDS_EARLY, f"{same} tokens, plain has {len(reference)}"
    if run.finish not in ("stop", "length"):
        return ENDS_EARLY, f"it was {run.finish or 'cut off'}"
    return _memory(run) if run.trial else ("", "")


def _common(tokens: Sequence[int], reference: Sequence[int]) -> int:
    """How many first tokens are equal."""
    pairs = enumerate(zip(tokens, reference, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(tokens), len(reference)))


def _memory(run: Run) -> tuple[str, str]:
    if run.pressure.swapped > SWAP_LIMIT:
        return SWAPPED, f"{run.pressure.swapped} pages were swapped meanwhile; close other programs"
    if run.pressure.faults > FAULT_LIMIT:
        return SWAPPED, f"{run.pressure.faults} pages came back from the disk; close other programs"
    return "", ""
