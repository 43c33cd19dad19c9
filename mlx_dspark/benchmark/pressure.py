"""Whether the machine ran short of memory meanwhile: pages swapped by the whole system, major faults of this process.

Linux counts swapped pages in /proc/vmstat; elsewhere (macOS) only this process's faults that went to the disk are
known. Counts only; what is too much is the verdict's to say.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

VMSTAT = Path("/proc/vmstat")
COUNTED = ("pswpin", "pswpout")


@dataclass(frozen=True)
class Pressure:
    """Pages swapped in or out, and page faults that waited for the disk."""

    swapped: int = 0
    faults: int = 0

    def since(self, before: Pressure) -> Pressure:
        return Pressure(self.swapped - before.swapped, self.faults - before.faults)


def read_pressure(vmstat: Path = VMSTAT) -> Pressure:
    """The counters so far; a counter this system lacks stays 0."""
    return Pressure(_swapped(vmstat), resource.getrusage(resource.RUSAGE_SELF).ru_majflt)


def _swapped(vmstat: Path) -> int:
    try:
        lines = vmstat.read_text("ascii").splitlines()
    except OSError:
        return 0
    counts = dict(line.split(" ", 1) for line in lines if " " in line)
    return sum(int(counts.get(name, 0)) for name in COUNTED)
