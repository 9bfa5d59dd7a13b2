"""`hflray.reproduction.queue.processes`: the queue's processes have the lowest priority."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hflray.reproduction.queue import processes
from tests.reproduction.queue.conftest import entries, rounds, runner
from tests.reproduction.queue.test_frozen import commit

pytestmark = pytest.mark.timeout(600)


def test_a_sweep_has_the_lowest_priority_after_its_first_round(repository, folder) -> None:
    about = json.loads((repository / "about.json").read_text())
    about["first"]["rounds"] = 20
    (repository / "about.json").write_text(json.dumps(about))
    commit(repository, "longer")
    first, calls = runner(folder, repository), []
    first._children._niceness = 19
    original = processes.group_last

    def note(pid: int, niceness: int) -> None:
        original(pid, niceness)
        calls.append((len(rounds(folder, "fig-first")), Path(f"/proc/{pid}/autogroup").read_text().split()[-1]))

    processes.group_last = note
    try:
        first.run()
    finally:
        processes.group_last = original
    assert entries(folder, "fig-first")[0]["nice"] == 19
    assert calls[0][0] >= 1
    assert calls[0][1] == "19" or not Path("/proc/self/autogroup").exists()
