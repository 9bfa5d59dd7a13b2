"""hflray.command.report: the commands work as a user types them, and every mistake gets one line."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hflray.command.report import CONFIGS, main
from hflray.report import tables
from hflray.report.exports import exports, read_exhibit
from tests.conftest import refusals
from tests.report import conftest as finished
from tests.support.terminal.rendering import WIDTHS, check_whole, render

records, results = finished.records, finished.results  # fixtures


def call(capsys, *arguments: str) -> tuple[int, str, list[str]]:
    """Run the command; return the exit code, the output, and the lines of errors."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err.splitlines()


def test_a_sweep_and_its_export_have_the_same_report(results, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, "tiny", "--results", str(results), "--out", "o", "--export", "exports")
    assert (code, err) == (0, [])
    stems = {"accuracy", "cost", "pareto"}
    names = {path.name for path in (tmp_path / "o").iterdir()}
    drawn = {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    assert names == drawn | {"index.html", "summary.md", "summary.tex"}
    assert "FedAvg" in out
    code, again, _ = call(capsys, "tiny", "--from", "exports")
    assert code == 0
    table = "o/summary.md"
    assert (tmp_path / table).read_text() == (tmp_path / "hflray_report/tiny/summary.md").read_text()
    assert "hflray_report/tiny/index.html" in again
    code, out, _ = call(capsys, "explain", "digits-H6-λ1-ikc-geographic-s0", "--round", "2", "--from", "exports")
    assert code == 0
    assert "round 2: 6 of 12 devices at 3 edges" in out


def test_a_full_disk_is_one_line_with_the_command(results, tmp_path, capsys, monkeypatch) -> None:
    def full(path: Path, text: str) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(tables, "write_file", full)
    code, _, err = call(capsys, "tiny", "--results", str(results), "--out", str(tmp_path))
    assert code == 1
    (line,) = err
    assert line.startswith(f"error: {tmp_path / 'summary.md'}: cannot be written (No space left on device; ")
    assert line.endswith(f"go on with: python -m hflray.report tiny --results {results} --out {tmp_path}")


def test_a_figure_that_cannot_be_drawn_is_reported_and_the_other_is_drawn(results, tmp_path, capsys) -> None:
    folders = ("--results", str(results), "--out", str(tmp_path))
    code, out, _ = call(capsys, "tiny", *folders, "--figure", "fig3", "--figure", "fig5")
    assert code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fig3.png", "fig3.svg"]
    assert "missing: fig5: not drawn:" in out
    assert "not tested" in out
    code, _, _ = call(capsys, "tiny", *folders, "--figure", "fig5")
    assert code == 1


def test_a_registered_figure_and_one_of_ones_own_are_drawn_of_any_sweep(results, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from hflray.report.figures import curves\n\n\ndef draw(sweep):\n    return curves(sweep)\n"
    )
    figures = ("--figure", "mine.py:draw", "--figure", "cost_bars")
    code, _, err = call(capsys, "tiny", "--results", str(results), "--out", "o", *figures)
    assert (code, err) == (0, [])
    assert sorted(path.name for path in Path("o").iterdir()) == [
        "cost_bars.png", "cost_bars.svg", "draw.png", "draw.svg",
    ]  # fmt: skip


def test_a_run_is_found_in_the_latest_sweep_that_has_it(results, capsys) -> None:
    folders = ("--results", str(results))
    code, out, _ = call(capsys, "explain", "digits-H6-λ1-fedavg-geographic-s1", "--round", "1", *folders)
    assert code == 0
    assert "which knows no clusters" in out


@pytest.mark.parametrize("arguments, words", refusals("command/report"))
def test_a_mistake_is_one_line(arguments, words, results, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    folders = () if "--from" in arguments else ("--results", str(results))
    code, out, err = call(capsys, *arguments, *folders)
    assert code == 2
    assert len(err) == 1
    assert words in err[0]
    assert "Traceback" not in out


def test_a_shipped_sweep_from_smoke_to_page(capsys, tmp_path) -> None:
    command = [sys.executable, "-m", "hflray.tune", str(CONFIGS / "lambda_sweep.yaml"), "--smoke"]
    environment = os.environ | {"PYTHONPATH": str(CONFIGS.parent)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folders = ("--results", str(tmp_path / "hflray_results"), "--out", str(tmp_path / "o"))
    code, out, err = call(capsys, "lambda_sweep-smoke", *folders)
    assert (code, err) == (0, [])
    assert not any(line.startswith("missing:") for line in out.splitlines())
    assert {"lambda_pareto.svg", "index.html"} <= {path.name for path in (tmp_path / "o").iterdir()}


def test_the_listing_and_the_help_name_the_commands(capsys) -> None:
    code, out, _ = call(capsys, "list")
    assert code == 0
    assert "python -m hflray.report fig7_framework --figure fig7" in out
    code, out, _ = call(capsys, "--help")
    assert code == 0
    assert "explain" in out


EXPORTS = list(exports(Path(__file__).parents[1] / "data" / "results"))


@pytest.mark.parametrize("folder", EXPORTS, ids=lambda folder: folder.name)
def test_the_table_of_each_committed_sweep_is_whole_at_any_width(folder) -> None:
    table = tables.summary(read_exhibit(folder))
    words = [word for heading in table.headings for word in heading.split()]
    for width in WIDTHS:
        texts = [table.title, *words, *(cell for row in table.rows for cell in row)]
        check_whole(render(table, width), width, texts)
