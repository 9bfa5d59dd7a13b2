"""hflray.tune.queue.publishing: a reader finds a whole export at any time."""

from __future__ import annotations

import os
from pathlib import Path

from hflray.tune.queue.publishing import publish


def test_an_export_replaces_the_old_one_with_its_list_last(tmp_path, monkeypatch) -> None:
    made, there = tmp_path / "made", tmp_path / "there"
    for path, runs in ((made, "b c"), (there, "a b")):
        path.mkdir()
        (path / "runs.json").write_text(runs)
        for name in runs.split():
            (path / f"{name}.rounds.parquet").write_text(f"{path.name} {name}")
    (there / "about.txt").write_text("who ran it")
    order: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append(Path(b).name), replace(a, b)))
    publish(made, there)
    assert order == ["b.rounds.parquet", "c.rounds.parquet", "runs.json"]
    assert {path.name: path.read_text() for path in there.iterdir()} == {
        "about.txt": "who ran it", "runs.json": "b c", "b.rounds.parquet": "made b", "c.rounds.parquet": "made c",
    }  # fmt: skip
