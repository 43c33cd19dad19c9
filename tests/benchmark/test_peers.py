"""bench/peers installs nothing unless asked. The comparison itself is no test: it needs the peers and a quiet machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench" / "peers" / "compare.py"


def test_nothing_is_installed_unless_asked(tmp_path: Path) -> None:
    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False, timeout=60
        )

    done = ask(str(tmp_path))
    assert done.returncode == 2
    assert "mlx-lm is not installed in" in done.stderr
    assert "add --install" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert "peers are mlx-lm, mlx-dspark, mlx-vlm" in ask(str(tmp_path), "--only", "vllm").stderr
    assert "--float32" in ask("--help").stdout
