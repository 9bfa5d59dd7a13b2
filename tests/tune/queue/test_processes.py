"""hflray.tune.queue.processes: what the queue starts comes last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hflray.tune.queue import processes
from tests.tune.queue.conftest import entries, rounds, runner
from tests.tune.test_frozen import commit

pytestmark = pytest.mark.timeout(600)


def test_all_that_it_starts_has_the_lowest_priority_after_its_first_round(repository, folder) -> None:
    about = json.loads((repository / "about.json").read_text())
    about["first"]["rounds"] = 20
    (repository / "about.json").write_text(json.dumps(about))
    commit(repository, "longer")
    first, seen = runner(folder, repository), []
    first._children._niceness = 19
    said = processes.group_last

    def note(pid: int, niceness: int) -> None:
        said(pid, niceness)
        seen.append((len(rounds(folder, "fig-first")), Path(f"/proc/{pid}/autogroup").read_text().split()[-1]))

    processes.group_last = note
    try:
        first.run()
    finally:
        processes.group_last = said
    assert entries(folder, "fig-first")[0]["nice"] == 19
    assert seen[0][0] >= 1
    assert seen[0][1] == "19" or not Path("/proc/self/autogroup").exists()
