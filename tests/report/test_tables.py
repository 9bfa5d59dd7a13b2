"""hflray.report.tables: means and deviations by hand, markdown and LaTeX that hold them."""

from __future__ import annotations

import numpy as np

from hflray import metrics
from hflray.report.tables import spread, summary, to_latex, to_markdown, write


def test_spread_by_hand() -> None:
    assert spread([1.0, 3.0], "{:.1f}") == "2.0 ± 1.4"
    assert spread([1.0, float("nan")], "{:.1f}") == "1.0"
    assert spread([], "{:.1f}") == "–"


def test_the_summary_is_of_the_runs(sweep, records) -> None:
    table = summary(sweep)
    assert list(table[""]) == ["IKC", "FedAvg"]
    assert list(table["seeds"]) == ["2", "2"]
    assert list(table["rounds"]) == ["2", "2"]
    last = [100 * records[run.name][-1].accuracy for run in sweep.runs if run.config.scheduling.name == "fedavg"]
    assert table["accuracy, %"][1] == f"{np.mean(last):.1f} ± {np.std(last, ddof=1):.1f}"
    assert "rounds to target" not in table  # nobody set one
    assert metrics.ROUNDS_TO_TARGET not in sweep.runs[0].rounds


def test_markdown_and_latex(sweep, tmp_path) -> None:
    lines = to_markdown(summary(sweep)).splitlines()
    assert lines[0].startswith("|  | seeds | rounds | accuracy, % |")
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    text = to_latex(summary(sweep), "50 % of _it_")
    assert r"\caption{50 \% of \_it\_}" in text
    assert r"accuracy, \%" in text
    assert text.count(r"\\") == 3
    assert "±" not in text
    assert [path.name for path in write(sweep, tmp_path)] == ["summary.md", "summary.tex"]
