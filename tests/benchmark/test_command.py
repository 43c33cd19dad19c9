"""`benchmark` and `models` as a user meets them; the real thing on the embedded pair is slow-marked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import measured
import pytest
from measured import SPOILT, only

from mlx_dspark import Pair
from mlx_dspark.benchmark.arms import choose_arms
from mlx_dspark.benchmark.files import write_whole
from mlx_dspark.benchmark.options import BenchmarkOptions
from mlx_dspark.benchmark.parameters import count_parameters
from mlx_dspark.benchmark.prompts import SUITE, read_prompts
from mlx_dspark.benchmark.report import from_json, to_json
from mlx_dspark.cli.main import main
from mlx_dspark.errors import OptionError

Capture = pytest.CaptureFixture[str]


def ends(*arguments: str) -> int:
    """The exit code of a command run in this process."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--caps", "auto,nine"], "--caps has 'nine'"),
        (["--caps", "0"], "--caps has '0'"),
        (["--caps", "65"], "a number from 1 to 64"),
        (["--caps", "1,,2"], "--caps is '1,,2'"),
        (["--modes", "warp"], "--modes has 'warp'"),
        (["--kinds", "chat,poems"], "--kinds has 'poems'"),
        (["--kinds", ""], "--kinds is ''"),
        (["--trials", "0"], "--trials is 0"),
        (["--max-tokens", "1"], "--max-tokens is 1"),
        (["--prompts", "./nowhere.jsonl"], "cannot be read"),
        (["--json", "./nowhere/x.json"], "there is no folder"),
        (["--html", "."], "is a folder"),
        (["--html", "-"], "needs a file"),
        (["--from", "./nowhere.json"], "--from ./nowhere.json cannot be read"),
        (["--model", "./nowhere"], "no folder here"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], said: str, capsys: Capture) -> None:
    assert ends("benchmark", *arguments) == 2
    shown = capsys.readouterr().err.strip()
    assert said in shown
    assert len(shown.splitlines()) == 1


def test_caps_and_modes_a_pair_cannot_do_are_refused(demo: Pair) -> None:
    with pytest.raises(OptionError, match="drafts at most 7"):
        choose_arms(demo, BenchmarkOptions(caps="8"))
    names = [arm.name for arm in choose_arms(demo, BenchmarkOptions())]
    assert names == ["plain", "auto", "cap 1", "cap 2", "cap 4", "cap 7"]
    both = choose_arms(demo, BenchmarkOptions(caps="02,2,auto", modes="dspark,lookup,dspark+lookup"))
    assert [arm.name for arm in both][:3] == ["plain", "dspark cap 2", "dspark auto"]
    assert [arm.pair.drafter.name for arm in both if arm.cap == 2] == ["dspark", "lookup", "lookup+dspark"]


def test_help_teaches_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom mlx_dspark.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('mlx', 'numpy', 'jinja2', 'huggingface_hub') if m in sys.modules])"
    )
    for command, said in (("benchmark", "Exit code 1"), ("models", "--index FOLDER")):
        done = subprocess.run(
            [sys.executable, "-c", code, command, "--help"], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip().splitlines()[-1] == "[]"
        assert said in " ".join(done.stdout.split())


def test_the_suite_and_other_prompts(tmp_path: Path) -> None:
    suite = read_prompts(SUITE, ("chat", "code", "math"))
    assert len({prompt.text for prompt in suite}) == len(suite) == 18
    assert len(read_prompts(SUITE, ("math",), 2)) == 2
    file = tmp_path / "own.jsonl"
    for line in ('{"kind": "x"}', "{", "[]", '{"kind": 3, "prompt": "a"}', '{"kind": "x", "prompt": 3}',
                 '{"kind": "a,b", "prompt": "x"}', '{"kind": "x", "messages": []}'):  # fmt: skip
        file.write_text(f'{{"kind": "y", "prompt": "fine"}}\n\n{line}\n')
        with pytest.raises(OptionError, match="line 3, is no prompt"):
            read_prompts(file, ("y",))
    file.write_text('{"kind": "y", "messages": [{"role": "user", "content": "fine"}]}\n')
    assert read_prompts(file, ("y",))[0].text == "fine"


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    write_whole(path, "old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OptionError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_A39_exit_codes_of_good_broken_and_partial_results(tmp_path: Path, capsys: Capture) -> None:
    a_trial = len(measured.SPEEDS) * len(measured.PROMPTS)
    cases = {
        "good": (measured.reported(), 0),
        "broken": (measured.reported(only("auto", "code", 1, SPOILT["one token differs"][1])), 1),
        "swapped": (measured.reported(only("auto", "code", 1, SPOILT["swap"][1])), 1),
        "partial": (measured.reported(stop_after=2 * a_trial), 130),
        "nothing": (measured.reported(stop_after=a_trial), 130),
    }
    for name, (report, code) in cases.items():
        file, page = tmp_path / f"{name}.json", tmp_path / f"{name}.html"
        file.write_text(to_json(report), "utf-8")
        assert ends("benchmark", "--from", str(file), "--html", str(page)) == code, name
        shown = capsys.readouterr()
        assert page.exists() == (name != "nothing")
        assert ("nothing is written" in shown.err) == (name == "nothing")
        assert ("Lossless" in shown.out) == (name in ("good", "swapped", "partial"))
    assert ends("benchmark", "--from", str(tmp_path / "good.json"), "--json", "-") == 0
    assert from_json(capsys.readouterr().out, "-") == cases["good"][0]
    assert ends("benchmark", "--from", str(tmp_path / "good.json"), "--markdown", "-") == 0
    assert capsys.readouterr().out.startswith("# A pair")


def test_models_lists_pairs_and_what_is_here(capsys: Capture, tmp_path: Path) -> None:
    main_ends = ends("models")
    shown = " ".join(capsys.readouterr().out.split())
    assert main_ends == 0
    for said in ("The embedded pair", "mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-DSpark-bf16", "here, 9.7 MB",
                 "mlx-dspark generate --model mlx-community/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-4bit",
                 "lookup off by default", "(M4 Pro, 4-bit target, MLX 0.32)"):  # fmt: skip
        assert said in shown, said
    assert ends("models", "--json") == 0
    pairs = json.loads(capsys.readouterr().out)["pairs"]
    assert [pair["name"] for pair in pairs] == ["demo", "nemotron-3.5-lightning"]
    assert pairs[0]["on_disk"]["demo"]["bytes"] > 9_000_000
    assert ends("models", "--index", str(tmp_path)) == 2
    assert "holds no page" in capsys.readouterr().err


def test_parameters_are_those_the_card_counts(demo: Pair) -> None:
    assert count_parameters(demo.config) == (16_571_080, 7_658_440)


@pytest.mark.slow
def test_the_embedded_pair_is_measured_lossless(tmp_path: Path) -> None:
    page, file, table = (tmp_path / name for name in ("page.html", "all.json", "table.md"))
    command = [
        sys.executable, "-m", "mlx_dspark", "benchmark", "--trials", "2", "--per-kind", "2", "--caps", "auto,4",
        "--modes", "dspark,lookup", "--max-tokens", "48", "--temperature", "0.7", "--html", str(page), "--json",
        str(file), "--markdown", str(table),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    report = from_json(file.read_text("utf-8"), "all.json")
    swapped = [f for f in report.faults if not f.lossy]  # a busy machine's affair, not the program's
    assert done.returncode == (1 if swapped else 0), done.stderr
    assert report.lossless
    assert report.compared_runs == 3 * 2 * 4 * 3
    assert {run.fault for run in report.runs} <= {None, "swapped"}
    digests = {(r.kind, r.prompt): r.digest for r in report.runs if r.arm == "plain"}
    assert all(run.digest == digests[run.kind, run.prompt] for run in report.runs)
    for cell in report.cells:
        assert cell.shares
        assert cell.peak_memory_bytes > 10_000_000
        assert cell.accept_length >= 1
        assert set(cell.drafts) <= set(range(8))
    assert "Lossless" in done.stdout
    assert "<svg" in page.read_text("utf-8")
    assert table.read_text("utf-8").startswith("# The embedded pair")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all.json", "page.html", "table.md"]


@pytest.mark.slow
def test_ctrl_c_says_partial_and_leaves_no_half_file(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    command = [
        sys.executable, "-m", "mlx_dspark", "benchmark", "--trials", "1000", "--per-kind", "1", "--kinds", "math",
        "--caps", "2", "--max-tokens", "8", "--json", str(file),
    ]  # fmt: skip
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(12)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in err
    assert os.listdir(tmp_path) in ([], ["all.json"])
    if file.exists():
        assert from_json(file.read_text("utf-8"), "all.json").partial
        assert "Partial: stopped after" in out
        assert "partial results" in err
