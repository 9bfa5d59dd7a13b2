"""`hflray.reproduction.queue.publishing`: an item's export is renewed as one file, whatever code made it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hflray.report.exports import ABOUT, FILE, content_of, exports, files_of, pack
from hflray.reproduction.queue.items import Item, State
from hflray.reproduction.queue.processes import Children
from hflray.reproduction.queue.publishing import Publisher, export_of

ITEM = Item(exhibit="fig", part="first", file="quickstart")


@pytest.mark.parametrize("form", ["a file", "a folder"])
def test_the_export_of_code_old_or_new_replaces_the_published_one_and_its_origin_stays(
    form, tmp_path, monkeypatch
) -> None:
    repository, queue = tmp_path / "repository", tmp_path / "queue"
    (queue / ITEM.name / "results" / "x").mkdir(parents=True)
    (queue / ITEM.name / "results" / "x" / "sweep.json").write_text("{}")
    place = export_of(repository, ITEM)
    pack(place, {FILE: b'{"runs": []}', "devices.parquet": b"old", ABOUT: b"who ran it"})
    files = {FILE: json.dumps({"runs": [{"name": "a"}]}).encode(), "rounds.parquet": b"new"}

    def report(command: list[str], *_: Path) -> bool:
        if "--export" not in command:
            return False
        made = Path(command[command.index("--export") + 1]) / "name"
        if form == "a file":
            pack(made, files)
        else:  # frozen code of before
            made.mkdir(parents=True)
            for name, content in files.items():
                (made / name).write_bytes(content)
        return True

    said: list[str] = []
    publisher = Publisher(queue, repository, Children(queue, 0), lambda: False, said.append)
    monkeypatch.setattr(publisher, "call", report)
    monkeypatch.setattr("hflray.reproduction.queue.publishing.to_commit", lambda repository: "")
    publisher.renew(ITEM, State(python="python"))
    assert exports(repository / "tests" / "data" / "results") == [place.parent]
    assert [path.name for path in place.parent.iterdir()] == ["first.zip"]
    assert files_of(place) == files | {ABOUT: b"who ran it"}
    assert content_of(files_of(place))["runs"] == [{"name": "a"}]
    assert said[-1].startswith("fig-first: exported")
