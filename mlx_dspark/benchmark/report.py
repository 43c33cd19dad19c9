"""The finished measurement as frozen records: what JSON holds and what every text and page is made from.

`to_json` and `from_json` are inverse. Seconds, bytes and tokens a second throughout; nothing here computes a figure.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from mlx_dspark.benchmark.verdict import Fault
from mlx_dspark.errors import OptionError

SCHEMA = 1


@dataclass(frozen=True)
class Spread:
    """Median, least and most of one value a trial."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Shares:
    """Parts of a round's time that add up to 1: drafter, target, rollback, and everything else."""

    draft: float
    verify: float
    rollback: float
    other: float


@dataclass(frozen=True)
class Cell:
    """One arm on one kind of prompts. Speeds are None where any of its runs is faulty.

    `speedup` is plain seconds over drafted seconds, trial by trial. `accept_length` is tokens a round, bonus included;
    `accepted_at_position[i]` is the share of rounds that proposed draft i and kept it. `drafts` counts rounds by how
    many drafts they verified, `reasons` by why the cap wanted so many. `shares` come from the rehearsal, which waits
    for the device after each phase.
    """

    arm: str
    mode: str
    cap: str
    kind: str
    tokens_per_second: Spread | None
    end_to_end_tokens_per_second: Spread | None
    prefill_tokens_per_second: Spread | None
    speedup: Spread | None
    accept_length: float
    accepted_at_position: tuple[float, ...]
    drafts: dict[int, int]
    reasons: dict[str, int]
    shares: Shares | None
    peak_memory_bytes: int
    tokens: int
    faults: int


@dataclass(frozen=True)
class Total:
    """One arm over the whole suite: plain seconds of all its answers over drafted ones; None where any kind is broken.

    `of_best_fixed` is the automatic cap's speed as a share of the best fixed cap's of its mode, a kind; absent for
    fixed caps.
    """

    arm: str
    mode: str
    cap: str
    speedup: Spread | None
    of_best_fixed: dict[str, float]


@dataclass(frozen=True)
class Curve:
    """Milliseconds of one verify by its rows, with `depth` tokens of context."""

    depth: int
    milliseconds: dict[int, float]


@dataclass(frozen=True)
class Curves:
    """What calibration measured of this pair on this machine; `note` says what it left out."""

    verify: tuple[Curve, ...]
    draft_milliseconds: dict[int, float]
    lookup_milliseconds: float | None = None
    overhead_milliseconds: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Machine:
    """Where it was measured. `load` is the system's load average when it began and ended."""

    system: str
    chip: str
    device: str
    kernels: str
    cores: int
    memory_bytes: int
    versions: dict[str, str]
    load: tuple[float, ...] = ()


@dataclass(frozen=True)
class PairFacts:
    """What the pair is, read from its files; `maker`, `licence` and `notes` from the registry where it is known.

    `pattern` has one letter a layer (M mamba, * attention, E experts, - dense); `facts` are (what, value) for people.
    """

    name: str
    target: str
    drafter: str | None
    maker: str | None
    licence: str | None
    summary: str
    notes: str
    pattern: str
    taps: tuple[int, ...]
    parameters: int
    active_parameters: int
    disk_bytes: int
    loaded_bytes: int
    target_facts: tuple[tuple[str, str], ...]
    drafter_facts: tuple[tuple[str, str], ...]
    features: tuple[str, ...]
    commands: tuple[str, ...]
    exact: bool


@dataclass(frozen=True)
class Method:
    """How it was measured."""

    trials: int
    trials_asked: int
    prompts: dict[str, int]
    max_tokens: int
    thinking: bool
    temperature: float
    seed: int
    suite: str


@dataclass(frozen=True)
class RunLine:
    """One run in short; `digest` is equal where tokens are."""

    arm: str
    kind: str
    prompt: int
    trial: int
    tokens: int
    digest: str
    prompt_tokens: int
    rounds: int
    prefill_seconds: float
    decode_seconds: float
    fault: str | None


@dataclass(frozen=True)
class Report:
    """Everything. `lossless` is the verdict over `compared_runs` drafted runs with `compared_tokens` tokens."""

    schema: int
    made: str
    partial: bool
    lossless: bool
    compared_runs: int
    compared_tokens: int
    pair: PairFacts
    machine: Machine
    method: Method
    curves: Curves | None
    cells: tuple[Cell, ...]
    totals: tuple[Total, ...]
    faults: tuple[Fault, ...]
    runs: tuple[RunLine, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.kind for cell in self.cells))

    def of_kind(self, kind: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.kind == kind]

    def cell(self, kind: str, arm: str) -> Cell | None:
        return next((cell for cell in self.cells if (cell.kind, cell.arm) == (kind, arm)), None)

    @property
    def ok(self) -> bool:
        """Whether every run was good."""
        return not self.faults


def to_json(report: Report) -> str:
    return json.dumps(asdict(report), ensure_ascii=False, indent=1) + "\n"


def from_json(text: str, name: str) -> Report:
    """A report from `to_json`'s text; `name` is the file, for messages. OptionError if it is none of this version."""
    try:
        value = json.loads(text)
        found = value.get("schema") if isinstance(value, dict) else None
        if found == SCHEMA:
            return TypeAdapter(Report).validate_python(value)
        why = f"its schema is {found!r}, this version reads {SCHEMA}" if found else "it holds no benchmark"
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except ValueError as error:
        why = f"it is no JSON ({error})"
    raise OptionError(f"--from {name} cannot be used: {why}; give a file that --json wrote")
