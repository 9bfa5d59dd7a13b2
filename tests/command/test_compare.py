"""hflray.command.compare: statistics of real exports on the terminal and as files, and mistakes in one line."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from hflray.command import compare
from tests.command.calls import caller
from tests.conftest import refusals, says

EXPORT = "tests/data/results/benchmark_equal"


call = caller("compare", squeezed=True, lines=True)


def test_statistics_of_an_export_are_a_table_a_csv_a_latex_table_and_a_figure(tmp_path, capsys) -> None:
    code, out, err = call(capsys, EXPORT, "--against", "fedavg", "--metric", "joules", "-o", str(tmp_path / "new"))
    assert (code, err) == (0, [])
    assert says(
        out, "IKC", "majority 100%", "Energy to the target accuracy", "10", "× 0.817", "[0.733, 0.912]", "p = 0.035"
    )
    assert says(
        out, "Beside FedAvg, paired by seed; p of the exact signed-rank test, by Holm's method over 9 comparisons."
    )
    stem = tmp_path / "new" / "comparison"
    assert [str(stem.with_suffix(end)) in out for end in (".csv", ".tex", ".png", ".svg")] == [True] * 4
    table = pd.read_csv(stem.with_suffix(".csv"))
    row = table[(table["case"] == "majority 100%") & (table["contestant"] == "IKC")].iloc[0]
    assert (row["metric"], row["n"], row["scale"], row["reference"]) == ("energy_j_to_target", 10, "ratio", "FedAvg")
    assert row["estimate"] == pytest.approx(0.817, abs=5e-4)
    assert row["p_holm"] == pytest.approx(9 * row["p"])
    assert stem.with_suffix(".tex").read_text().count(r"\\") == 10
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    ElementTree.parse(stem.with_suffix(".svg"))


@pytest.mark.parametrize("words, facts", refusals("command/compare"))
def test_a_mistake_is_one_line(words, facts, capsys, tmp_path) -> None:
    code, _, err = call(capsys, *(EXPORT if word == "EXPORT" else word for word in words), "--results", str(tmp_path))
    assert code == 2
    assert says(err[-1], "error: ", *facts)


def test_notes_that_are_many_are_counted(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(compare, "NOTES", 1)
    code, out, _ = call(capsys, "tests/data/results/rules_all", "--against", "sgd", "--metric", "accuracy")
    assert code == 0
    assert says(out, "mtgc", "note: rules_all: ", "note: 19 further notes")


def test_one_sweep_alone_is_its_closing_table(tmp_path, capsys, monkeypatch) -> None:
    shown: list[tuple[str, Path]] = []
    monkeypatch.setattr(compare, "show", lambda name, results, *_: shown.append((name, results)))
    assert call(capsys, "mine", "--results", str(tmp_path)) == (0, "", [])
    assert shown == [("mine", tmp_path)]
