"""Each notebook of docs/notebooks/ runs from its first cell to its last and gives its stored outputs."""

from __future__ import annotations

import re

import nbformat
import pytest

from tests.examples.notebooks import NOTEBOOKS, executed

NAMES = ["1_first_experiment", "2_cost_of_a_round", "3_own_scheduler", "4_asynchrony", "5_log_to_plan"]


def shape_of(output: nbformat.NotebookNode) -> tuple[object, ...]:
    """Return what does not depend on the machine: the kind of an output, its formats, and its text without numbers."""
    text = output.get("text", "") or output.get("data", {}).get("text/plain", "")
    words = sorted(set(re.findall(r"[A-Za-z][\w-]*", re.sub(r"-?\d+\.\d+|\bNaN\b", "", text))))
    return output.output_type, tuple(sorted(output.get("data", {}))), tuple(words)


def test_the_folder_has_these_notebooks():
    assert [path.stem for path in sorted(NOTEBOOKS.glob("*.ipynb"))] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_with_pictures_and_without_traces_of_a_machine(name):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert not [cell.metadata for cell in notebook.cells if "execution" in cell.metadata]
    assert (NOTEBOOKS / f"{name}.ipynb").stat().st_size < 300_000


@pytest.mark.parametrize("name", [*NAMES[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[2:])])
def test_a_notebook_runs_and_gives_the_stored_outputs(name, tmp_path, monkeypatch):
    """Numbers of cells that train may differ on another CPU; those of cells with the tag ``arithmetic`` do not."""
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel's own backend puts pictures into outputs
    stored = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    notebook = executed(NOTEBOOKS / f"{name}.ipynb", tmp_path)
    assert not list(tmp_path.iterdir())  # a notebook leaves no file behind
    for cell, before in zip(notebook.cells, stored.cells, strict=True):
        assert [shape_of(output) for output in cell.get("outputs", [])] == [
            shape_of(output) for output in before.get("outputs", [])
        ]
        if "arithmetic" in cell.metadata.get("tags", []):
            assert [output.get("data", {}).get("text/plain", output.get("text")) for output in cell.outputs] == [
                output.get("data", {}).get("text/plain", output.get("text")) for output in before.outputs
            ]
