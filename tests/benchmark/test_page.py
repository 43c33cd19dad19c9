"""The page: valid, whole in itself, escaped, and drawn from good runs alone."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import measured
import pytest
from measured import SPOILT, only

from mlx_dspark.benchmark import text
from mlx_dspark.benchmark.page.index import summary_of, write_index
from mlx_dspark.benchmark.page.page import page
from mlx_dspark.benchmark.page.svg import Scale, apart, ticks
from mlx_dspark.benchmark.report import Report, Shares, from_json, to_json
from mlx_dspark.errors import OptionError

VOID = {"meta", "link", "br", "img", "hr", "input"}
NASTY = '<script>alert("1")</script>&\'"</style><!--'


class Strict(HTMLParser):
    """Every element is closed in order; collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"{tag} has an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data


def parse(html: str) -> Strict:
    assert html.startswith("<!doctype html>")
    reader = Strict()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def charts(html: str) -> list[str]:
    return re.findall(r'<svg[^>]*class="chart".*?</svg>', html, re.DOTALL)


def test_the_page_is_whole_in_itself() -> None:
    html = page(measured.reported())
    reader = parse(html)
    names = {tag for tag, _ in reader.tags}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base"}
    assert not any(name in attrs for _, attrs in reader.tags for name in ("src", "href", "srcset", "onload", "onclick"))
    assert "url(" not in html
    assert "@import" not in html
    assert not re.search(r"https?://", html)
    assert "prefers-color-scheme: dark" in html
    assert any(tag == "meta" and attrs.get("name") == "viewport" for tag, attrs in reader.tags)
    assert len(charts(html)) == 4
    assert "stroke-dasharray" in html
    assert all(attrs.get("aria-label") or attrs.get("aria-hidden") for tag, attrs in reader.tags if tag == "svg")


def test_the_page_says_what_was_measured() -> None:
    report = measured.reported()
    seen = " ".join(parse(page(report)).text.split())
    for said in ("1.60×", "1.50×", "A pair", "Someone", "12.3M parameters", "4M active", "Free", "A chip", "Lossless",
                 "mlx-dspark generate --model org/target", "greedy", report.made[:10], "8 rows cost", "8k did not fit",
                 "2 drafts in 100 % of rounds (pays 75 %, parked 25 %)"):  # fmt: skip
        assert said in seen, said
    without = page(replace(report, curves=None))
    assert "What a verify costs" not in without


def test_everything_given_is_escaped() -> None:
    report = measured.reported()
    facts = replace(
        report.pair, name=NASTY, target=NASTY, drafter=NASTY, maker=NASTY, licence=NASTY, summary=NASTY, notes=NASTY,
        target_facts=((NASTY, NASTY),), drafter_facts=((NASTY, NASTY),), features=(NASTY,), commands=(NASTY,),
    )  # fmt: skip
    machine = replace(report.machine, chip=NASTY, system=NASTY, kernels=NASTY, versions={NASTY: NASTY})
    cells = tuple(replace(c, kind=NASTY if c.kind == "chat" else c.kind) for c in report.cells)
    plan = {NASTY: 2, "code": 2}
    nasty = replace(report, pair=facts, machine=machine, cells=cells, method=replace(report.method, prompts=plan))
    plain, spoilt = parse(page(report)), parse(page(nasty))
    assert [tag for tag, _ in spoilt.tags] == [tag for tag, _ in plain.tags]
    assert NASTY in spoilt.text


@pytest.mark.parametrize("name", SPOILT)
def test_broken_runs_never_reach_a_chart(name: str) -> None:
    report = measured.reported(only("auto", "code", 1, SPOILT[name][1]))
    html = page(report)
    code = next(c for c in charts(html) if "on code prompts" in c)
    assert "polygon" not in code
    assert "1.60" not in code
    assert "1.50×" in code
    whole = parse(html).text
    assert "auto: 1 marked run, left out" in whole
    assert SPOILT[name][0] in whole
    headline = whole.split("Speed by kind")[0].split("chat")[0]
    assert "1.60" not in headline
    assert ("1.50×" in headline) == report.lossless
    assert ("No headline" in headline) != report.lossless


def test_a_page_without_any_good_run_draws_nothing() -> None:
    report = measured.reported(lambda run: SPOILT["crash"][1](run) if run.arm != "plain" else run, curves=None)
    html = page(report)
    assert charts(html) == []
    seen = parse(html).text
    assert "NOT lossless" in seen
    assert "No headline" in seen
    assert "No good drafted run to draw." in seen


def test_a_stopped_measurement_says_so_everywhere() -> None:
    report = measured.reported(stop_after=2 * len(measured.SPEEDS) * len(measured.PROMPTS) + 1)
    for shown in (parse(page(report)).text, text.terminal(report), text.markdown(report)):
        assert "Partial: stopped after 1 of 3 trials" in shown


def test_texts_have_every_arm_and_the_verdict() -> None:
    report = measured.reported(only("cap 4", "code", 2, SPOILT["one token differs"][1]))
    for shown in (text.terminal(report), text.markdown(report)):
        assert all(shown.count(arm) >= 2 for arm in measured.SPEEDS)
        assert "NOT lossless: 1 of" in shown
        assert "token 5 is 7, plain has 104" in shown
        assert "best fixed cap 4, 1.50×, auto 1.60× (1.07 of that speed)" in shown
        assert "best fixed cap 2, 1.25×" in shown
    rows = [line for line in text.markdown(report).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {len(text.HEADER) + 1}


def test_json_and_back() -> None:
    for report in (measured.reported(), measured.reported(only("auto", "chat", 1, SPOILT["crash"][1]), curves=None)):
        assert from_json(to_json(report), "x.json") == report


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("", "it is no JSON"),
        ("[]", "it holds no benchmark"),
        ('{"schema": 99}', "its schema is 99, this version reads 1"),
        ('{"schema": 1}', "Field required"),
    ],
)
def test_a_file_that_is_no_report_is_refused(damage: str, said: str) -> None:
    with pytest.raises(OptionError, match=r"--from x\.json cannot be used") as refused:
        from_json(damage, "x.json")
    assert said in str(refused.value)


def test_the_index_links_pages_and_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no page"):
        write_index(tmp_path)
    (tmp_path / "other.html").write_text("<!doctype html><p>mine", "utf-8")
    broken = measured.reported(lambda run: SPOILT["crash"][1](run) if run.arm != "plain" else run)
    (tmp_path / "a b.html").write_text(page(measured.reported()), "utf-8")
    (tmp_path / "b.html").write_text(page(named(broken, NASTY)), "utf-8")
    path, count = write_index(tmp_path)
    assert (path.name, count) == ("index.html", 2)
    reader = parse(path.read_text("utf-8"))
    assert [attrs["href"] for tag, attrs in reader.tags if tag == "a"] == ["a%20b.html", "b.html"]
    assert "script" not in {tag for tag, _ in reader.tags}
    for said in ("1.60×", "NOT lossless", NASTY, "chat 1.60×"):
        assert said in reader.text
    assert write_index(tmp_path)[1] == 2
    assert summary_of(path) is None
    path.write_text("<!doctype html>mine", "utf-8")
    with pytest.raises(OptionError, match="no index of pages"):
        write_index(tmp_path)


def named(report: Report, name: str) -> Report:
    return replace(report, pair=replace(report.pair, name=name))


def test_ticks_are_round_few_and_cover() -> None:
    for low, high in ((0.9, 1.2), (0, 7.9), (0.31, 2.44), (0, 0.0007), (0, 1234), (1, 1), (0, 0)):
        marks = ticks(low, high)
        assert len(marks) <= 5
        assert marks[0] <= low + 1e-9
        assert marks[-1] >= high - 1e-9
        assert marks == sorted(marks)


def test_labels_are_kept_apart() -> None:
    placed = apart([50, 51, 52, 90], 12, 0, 100)
    assert all(b - a >= 12 for a, b in itertools.pairwise(placed))
    assert placed[-1] <= 100
    assert Scale(0, 10, 100, 0)(5) == 50


def test_shares_without_time_are_absent() -> None:
    report = measured.reported(lambda run: replace(run, decode_seconds=0.0) if run.trial == 0 else run)
    assert all(cell.shares is None for cell in report.cells)
    assert isinstance(parse(page(report)).text, str)
    assert Shares(0.1, 0.2, 0.3, 0.4) in {Shares(0.1, 0.2, 0.3, 0.4)}
