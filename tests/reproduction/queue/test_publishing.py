"""`hflray.reproduction.queue.publishing`: a reader sees a whole export at any time."""

from __future__ import annotations

import os
from pathlib import Path

from hflray.reproduction.queue.publishing import publish


def test_an_export_replaces_the_old_one_with_its_list_last(tmp_path, monkeypatch) -> None:
    new, published = tmp_path / "new", tmp_path / "published"
    for path, runs in ((new, "b c"), (published, "a b")):
        path.mkdir()
        (path / "runs.json").write_text(runs)
        for name in runs.split():
            (path / f"{name}.rounds.parquet").write_text(f"{path.name} {name}")
    (published / "about.txt").write_text("who ran it")
    order: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append(Path(b).name), replace(a, b)))
    publish(new, published)
    assert order == ["b.rounds.parquet", "c.rounds.parquet", "runs.json"]
    assert {path.name: path.read_text() for path in published.iterdir()} == {
        "about.txt": "who ran it", "runs.json": "b c", "b.rounds.parquet": "new b", "c.rounds.parquet": "new c",
    }  # fmt: skip
