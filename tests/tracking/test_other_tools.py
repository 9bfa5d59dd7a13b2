"""hflray.tracking.tensorboard and .wandb: a run arrives whole, and one that is opened again is written anew."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

from hflray.errors import ConfigError
from hflray.tracking import Place, Run, try_sinks
from hflray.tracking.sink import Ending, Round, build

RUN = Run("t1", "trial 1", {"seed": 3}, {"hflray.task": "experiment"}, {"config.yaml": "seed: 3\n"})
ROUNDS = [Round(1, 1500, {"accuracy": 0.25, "round/delay_s": 2.0}), Round(2, 2500, {"accuracy": 0.5})]


def scalars(folder: Path) -> list[tuple[str, int, float, float]]:
    """Return name, step, value and time of the scalars in a folder's event files, which are length, CRC, event, CRC."""
    found = []
    for path in folder.iterdir():
        content, at = path.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + size])
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.append((value.tag, event.step, value.simple_value, event.wall_time))
            at += size + 16
    return found


def test_tensorboard_has_every_round_once_also_of_a_run_that_is_opened_again(tmp_path) -> None:
    sink = build("tensorboard", Place("", "", "s", tmp_path))
    sink.connect()
    for end in (1, 2):
        assert sink.open(RUN) == -1
        sink.rounds(RUN, ROUNDS[:end])
    sink.end(RUN, Ending("FINISHED"))
    expected = [("accuracy", 1, 0.25, 1.5), ("round/delay_s", 1, 2.0, 1.5), ("accuracy", 2, 0.5, 2.5)]
    assert scalars(tmp_path / "tensorboard" / "t1") == expected


class FakeRun:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options, self.summary = options, dict[str, Any]()
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.exit_code: int | None = None

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, values))

    def finish(self, exit_code: int = 0) -> None:
        self.exit_code = exit_code


def test_wandb_gets_runs_offline_under_one_id(tmp_path, monkeypatch) -> None:
    runs: list[FakeRun] = []
    fake = SimpleNamespace(init=lambda **options: runs.append(FakeRun(options)) or runs[-1], Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    sink = build("wandb", Place("", "mine", "s", tmp_path))
    sink.connect()
    for status, error in (("FINISHED", None), ("FAILED", "it broke")):
        assert sink.open(RUN) == -1
        sink.rounds(RUN, ROUNDS)
        left = tmp_path / "wandb" / f"offline-run-1-{runs[-1].options['id']}"
        left.mkdir(exist_ok=True)
        sink.end(RUN, Ending(status, error))  # type: ignore[arg-type]
    first, second = runs
    assert first.options == second.options
    assert first.options["mode"] == "offline"
    assert first.options["config"] == {"seed": 3}
    assert first.logged == [(1, ROUNDS[0].values), (2, ROUNDS[1].values)]
    assert (first.exit_code, second.exit_code) == (0, 1)
    sink.open(RUN)
    assert not left.exists()


def test_wandb_itself_takes_a_run(tmp_path) -> None:
    pytest.importorskip("wandb", reason="pip install 'hflray[wandb]'")
    sink = build("wandb", Place("", "mine", "s", tmp_path))
    sink.connect()
    for _ in range(2):
        sink.open(RUN)
        sink.rounds(RUN, ROUNDS)
        sink.end(RUN, Ending("FINISHED"))
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    assert b"round/delay_s" in file.read_bytes()


def test_a_dry_run_says_that_wandb_is_missing(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"tracking\.sinks: wandb needs .* pip install 'hflray\[wandb\]'"):
        try_sinks(("tensorboard", "wandb"), "", "")
