"""Run the notebooks of docs/notebooks/ and store them: ``python -m tests.examples.notebooks``, about a minute."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of a run in a folder; the times of the cells are left out.

    Raises:
        CellExecutionError: a cell raises an error.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=200, record_timing=False, resources={"metadata": {"path": str(folder)}})
    client.execute()
    # The kernel adds the version of Python, which changes nothing for a reader.
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def main() -> None:
    """Store each notebook with new outputs, and say how long it took."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(path, Path(folder))
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
