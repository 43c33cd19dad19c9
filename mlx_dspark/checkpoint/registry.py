"""The pairs this project knows by name: which drafter goes with which target, their defaults, what others measured.

Data alone: knows no disk and no hub. Figures here are other people's, each with its machine; ours are measured by
`mlx-dspark benchmark` and never written down in code.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """Something others measured and published: what, on which machine."""

    text: str
    where: str


@dataclass(frozen=True)
class KnownPair:
    """A target and the drafter made for it, as names `resolve` takes; the rest is for people.

    `lookup_drafts` is the pair's default for --lookup-drafts.
    """

    name: str
    target: str
    drafter: str
    title: str
    maker: str
    licence: str
    summary: str
    notes: str = ""
    lookup_drafts: bool = False
    figures: tuple[Figure, ...] = ()


KNOWN_PAIRS = (
    KnownPair(
        name="demo",
        target="demo",
        drafter="demo-drafter",
        title="The embedded pair",
        maker="mlx-dspark",
        licence="Apache-2.0, data notices in its card",
        summary="A small trained Mamba-2, expert and attention hybrid with its DSpark drafter.",
        notes="Part of the package: a tiny 4-bit target that shows and tests the program, on any machine and offline.",
    ),
    KnownPair(
        name="nemotron-3.5-lightning",
        target="mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-4bit",
        drafter="mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-DSpark-bf16",
        title="NVIDIA Nemotron 3.5 Lightning 30B-A3B, 4-bit",
        maker="NVIDIA",
        licence="OpenMDW-1.1 (the drafter)",
        summary="A Mamba-2, expert and attention hybrid with a thinking mode: 30B parameters, about 3B active a token.",
        notes="Fetched from the hub at first use. Lookup drafts are off: on targets with routed experts they lose.",
        figures=(
            Figure(
                "plain about 91 tok/s; at 4 drafts a round code 1.27x (accept length 4.55), math 1.24x (4.41), "
                "chat 1.06x (3.74)",
                "M4 Pro, 4-bit target, MLX 0.32",
            ),
            Figure(
                "at 3 drafts a round, on a fixed suite: code 1.23x, math 1.13x, chat 0.95x, mean 1.10x; peak memory "
                "about 20 GB",
                "M4 Pro, 4-bit target, MLX 0.32",
            ),
            Figure(
                "2.23x (252 tok/s) after 512 tokens of context, 1.28x after 8K, with exact verify kernels",
                "M5 Max",
            ),
            Figure(
                "accept length at temperature 1: 3.87 overall, coding 4.38, questions 3.36, writing 2.83",
                "NVIDIA's own",
            ),
        ),
    ),
)


def pair_for(model_name: str) -> KnownPair | None:
    """The known pair of a target, recognised by its name or by a folder of its name; None if there is none."""
    last = Path(model_name).name
    for pair in KNOWN_PAIRS:
        if model_name == pair.target or ("/" in pair.target and last == pair.target.split("/")[1]):
            return pair
    return None


def drafter_for(model_name: str) -> str | None:
    """The drafter known for a target; None if none is known."""
    pair = pair_for(model_name)
    return pair.drafter if pair else None
