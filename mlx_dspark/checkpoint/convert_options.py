"""What a user may set when converting. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from mlx_dspark.errors import OptionError
from mlx_dspark.options import check_options, option

FORMATS = ("bf16", "mlx-nvfp4")


@dataclass(frozen=True)
class ConvertOptions:
    """From `src`, a local folder or a hub repository, to the folder `dst`."""

    src: str
    dst: str
    format: str = option(
        "bf16", "Write bf16, or mlx-nvfp4: the same 4-bit bytes in MLX's own form, nothing rounded.", choices=FORMATS
    )
    dry_run: bool = option(False, "Check the source and print the plan; write nothing.")
    verify: bool = option(
        False, "Re-read source and result and prove every tensor; DST is only checked if it is there already."
    )
    force: bool = option(False, "Replace DST once the new result is complete.")
    hashes: bool = option(True, "Record the sha256 of every tensor in conversion.json.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.dry_run and self.verify:
            raise OptionError("--dry-run writes nothing that --verify could prove; give one of them")
