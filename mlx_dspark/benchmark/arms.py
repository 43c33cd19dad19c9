"""What is compared: plain decoding, and one arm a mode and cap. An arm is a pair with its drafter, and a cap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mlx_dspark.benchmark.options import BenchmarkOptions
from mlx_dspark.engine.pair import Pair
from mlx_dspark.errors import OptionError
from mlx_dspark.models.drafter import Contest, Drafter
from mlx_dspark.models.lookup import Lookup

PLAIN = "plain"
AUTO = "auto"
USUAL_CAPS = (1, 2, 4)
DRAFTERS: dict[str, Callable[[Drafter], Drafter]] = {
    "dspark": lambda drafter: drafter,
    "lookup": lambda drafter: Lookup(),
    "dspark+lookup": lambda drafter: Contest([Lookup(), drafter]),
}


@dataclass(frozen=True)
class Arm:
    """`cap` is 0 for plain decoding, a number of drafts, or None where decoding chooses by itself."""

    name: str
    mode: str
    cap: int | None
    pair: Pair

    @property
    def cap_name(self) -> str:
        return AUTO if self.cap is None else str(self.cap)


def choose_arms(pair: Pair, options: BenchmarkOptions) -> list[Arm]:
    """Plain first, then every mode at every cap. OptionError where the pair cannot do what was asked."""
    drafts = pair.drafter.max_draft > 0
    modes = options.mode_names() or ("dspark" if drafts else "lookup",)
    arms = [Arm(PLAIN, PLAIN, 0, pair)]
    for mode in modes:
        if "dspark" in mode and not drafts:
            raise OptionError(
                f"--modes has {mode}, but no drafter is loaded for {pair.names['model']}; give one as --drafter"
            )
        drafter = DRAFTERS[mode](pair.drafter)
        for name in options.cap_names() or _usual(drafter.max_draft):
            cap = None if name == AUTO else int(name)
            if cap and cap > drafter.max_draft:
                raise OptionError(
                    f"--caps has {cap}, but {mode} drafts at most {drafter.max_draft} tokens a round; leave it out"
                )
            label = name if cap is None else f"cap {name}"
            label = f"{mode} {label}" if len(modes) > 1 else label
            arms.append(Arm(label, mode, cap, replace(pair, drafter=drafter)))
    return arms


def _usual(most: int) -> list[str]:
    return [AUTO, *(str(cap) for cap in dict.fromkeys((*(c for c in USUAL_CAPS if c < most), most)))]
