"""hflray.tracking.sender: an unreachable tracker causes warnings, and receives everything once later."""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from mlflow import MlflowClient

from hflray.errors import ConfigError
from hflray.support import references
from hflray.tracking import Files, Run, Tracker, default_uri, sender
from tests.conftest import says, small_config
from tests.tracking.diary import Diary, until


def test_a_server_that_fails_costs_a_warning_and_nothing_is_lost(open_tracker, results, monkeypatch, caplog) -> None:
    monkeypatch.setattr(sender, "RETRY_AFTER_S", 0.05)
    tracker = open_tracker("three")
    tracker.start("t1", "patient", small_config(), {})
    while not tracker.run_ids():
        threading.Event().wait(0.02)
    log_batch = tracker._mlflow._client.log_batch

    def down(*_: object, **__: object) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(tracker._mlflow._client, "log_batch", down)
    begin = time.monotonic()
    for step in (1, 2, 3):
        tracker.round("t1", step, {"round/objective": step / 10})
    assert time.monotonic() - begin < 0.5  # a round never waits for the server
    while "nobody there" not in caplog.text:
        threading.Event().wait(0.02)
    threading.Event().wait(0.3)
    assert caplog.text.count("does not answer") == 1
    monkeypatch.setattr(tracker._mlflow._client, "log_batch", log_batch)
    tracker.finish("t1")
    assert tracker.close()
    client = MlflowClient(default_uri(results))
    history = client.get_metric_history(tracker.run_ids()[0], "round/objective")
    assert [m.step for m in history] == [1, 2, 3]
    assert client.get_run(tracker.run_ids()[0]).info.status == "FINISHED"
    lines = [json.loads(line) for line in (results / "three" / "journal" / "t1.jsonl").read_text().splitlines()]
    assert [line.get("round") for line in lines] == [None, 1, 2, 3, None]
    assert tracker.history("t1") == [(step, {"round/objective": step / 10}) for step in (1, 2, 3)]


def test_rounds_that_a_trial_makes_again_are_not_sent_again(tmp_path, diary) -> None:
    """Its journal was damaged or removed, so it began again before the tracker's last round."""
    for last in (3, 5):
        tracker = Tracker("http://127.0.0.1:9", "tests", "again", tmp_path, sinks=("diary",))
        (sink,) = diary[-1:]
        sink.last_rounds = {"t1": 3} if last == 5 else {}
        tracker.start("t1", "again", small_config(), {})
        until(lambda sink=sink: sink.of("open"))  # type: ignore[misc]
        for step in range(1, last + 1):
            tracker.round("t1", step, {"accuracy": step / 8})
        tracker.finish("t1")
        assert tracker.close()
        assert sink.numbers("t1") == list(range(1, 4) if last == 3 else range(4, 6))
        assert sink.of("end")[0][1].values == {"accuracy": last / 8}  # type: ignore[attr-defined]
        (tmp_path / "journal" / "t1.jsonl").unlink()


def test_rounds_made_while_the_server_is_away_are_kept_in_the_journal_only(open_tracker, results, monkeypatch) -> None:
    """A long outage must not fill the driver's memory. The missed rounds are read from the journal, once."""
    monkeypatch.setattr(sender, "RETRY_AFTER_S", 0.05)
    tracker = open_tracker("away")
    tracker.start("t1", "far-ahead", small_config(), {})
    tracker.round("t1", 1, {"round/objective": 0.1})
    (thread_sender,) = tracker._senders
    until(lambda: not thread_sender.unsent())
    tries = []

    def refuse(*_: object) -> None:
        tries.append(1)
        raise ConnectionError("nobody there")

    monkeypatch.setattr(thread_sender, "_send", refuse)
    for step in range(2, 102):
        tracker.round("t1", step, {"round/objective": step / 10})
        until(lambda: thread_sender._warned)
    while len(tries) < 4:
        threading.Event().wait(0.02)
    assert len(thread_sender._outboxes["t1"].pending) == 1
    assert thread_sender._outboxes["t1"].has_backlog
    monkeypatch.undo()
    tracker.round("t1", 102, {"round/objective": 10.2})
    tracker.finish("t1")
    assert tracker.close()
    history = MlflowClient(default_uri(results)).get_metric_history(tracker.run_ids()[0], "round/objective")
    assert [(m.step, m.value) for m in history] == [(step, step / 10) for step in range(1, 103)]


def test_data_that_have_arrived_are_dropped(open_tracker, results) -> None:
    tracker = open_tracker("gone")
    for key in ("t1", "t2"):
        tracker.start(key, key, small_config(), {})
        tracker.round(key, 1, {"round/objective": 1.0})
    tracker.finish("t1")
    assert tracker.close()
    (thread_sender,) = tracker._senders
    done, running = thread_sender._outboxes["t1"], thread_sender._outboxes["t2"]
    assert (done.run.params, done.run.tags, done.run.artifacts, done.pending, done.values) == ({}, {}, {}, [], {})
    assert running.run.params
    assert len(tracker.run_ids(["t1", "t2"])) == 2


def test_an_interrupt_ends_the_wait_for_the_server(open_tracker, results, monkeypatch, caplog) -> None:
    tracker = open_tracker("impatient")
    blocked = threading.Event()
    tracker.start("t1", "slow", small_config(), {})
    tracker.artifact("t1", Files(lambda folder: [folder] * blocked.wait(60)))

    def interrupted(timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tracker._senders[0]._thread, "join", interrupted)
    assert not tracker.close()
    assert "python -m hflray.tracking sync" in caplog.text
    blocked.set()


def test_a_tracker_has_time_while_things_arrive_and_no_more(tmp_path, diary, monkeypatch, caplog) -> None:
    """The limit holds from one thing that arrives to the next, and each line says how long nothing has arrived."""
    monkeypatch.setattr(sender, "STALLED_AFTER_S", 0.5)
    monkeypatch.setattr(sender, "SAY_EVERY_S", 0.2)
    tracker = Tracker("http://127.0.0.1:9", "tests", "dripping", tmp_path / "a b", sinks=("diary",))
    (sink,) = diary
    tracker.start("t1", "slow", small_config(), {})
    until(lambda: sink.of("open"))
    sink._call = lambda name, *rest: (time.sleep(0.3), sink.calls.append((name, *rest)))  # type: ignore[method-assign]
    for _ in range(5):  # 1.5 s together
        tracker.artifact("t1", Files(lambda folder: []))
    assert tracker.close()
    assert caplog.text.count("runs are still to be sent, and nothing has arrived for 0 s (given up after 0 s)") >= 3
    assert len(sink.of("artifact")) == 5

    caplog.clear()
    tracker = Tracker("http://127.0.0.1:9", "tests", "stalled", tmp_path / "a b", sinks=("diary",))
    sink = diary[-1]
    tracker.start("t1", "stalled", small_config(), {})
    until(lambda: sink.of("open"))
    sink.hold = threading.Event()
    tracker.artifact("t1", Files(lambda folder: []))
    begin = time.monotonic()
    assert not tracker.close()
    assert time.monotonic() - begin < 10
    sink.hold.set()
    assert "the diary has not received everything of stalled" in caplog.text
    assert f"python -m hflray.tracking sync '{tmp_path / 'a b'}'" in caplog.text


@pytest.fixture
def dripping() -> Iterator[str]:
    """Yield the address of a server that accepts connections and sends a byte each 0.1 s for ever."""
    stop = threading.Event()

    def drip(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n")
            while not stop.wait(0.1):
                client.sendall(b" ")

    def serve(server: socket.socket) -> None:
        with suppress(OSError):
            while not stop.is_set():
                threading.Thread(target=drip, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        stop.set()


def test_a_server_that_drips_delays_neither_the_start_nor_the_end_for_ever(
    dripping, tmp_path, monkeypatch, caplog
) -> None:
    """Each byte comes in time for the limit of a request, and the answer never does."""
    monkeypatch.setattr(sender, "CONNECT_WITHIN_S", 0.5)
    with pytest.raises(ConfigError, match=r"tracking.uri: cannot open .*no answer in 0 s"):
        Tracker(dripping, "tests", "required", tmp_path / "required", required=True)
    tracker = Tracker(dripping, "tests", "dripping", tmp_path / "dripping")
    assert "does not answer; keeping the rounds for later: no answer in 0 s" in caplog.text
    tracker.start("t1", "kept", small_config(), {})
    tracker.round("t1", 1, {"accuracy": 0.5})
    begin = time.monotonic()
    assert not tracker.close(within_s=0.5)
    assert time.monotonic() - begin < 10
    assert "has not received everything of kept" in caplog.text


def test_an_unreachable_tracker_delays_no_other(open_tracker, results, monkeypatch, caplog, diary) -> None:
    monkeypatch.setattr(sender, "RETRY_AFTER_S", 0.05)
    tracker = open_tracker("two", sinks=("mlflow", "diary"))
    (away,) = diary
    away.fail_in = {"connect", "rounds"}
    tracker.start("t1", "x", small_config(), {})
    for step in range(1, 11):
        tracker.round("t1", step, {"round/objective": step / 10})
    tracker.finish("t1")
    until(lambda: tracker.run_ids())
    client = MlflowClient(default_uri(results))
    until(lambda: client.get_run(tracker.run_ids()[0]).info.status == "FINISHED")
    until(lambda: len(away.of("rounds failed")) + len(away.of("connect failed")) > 3)
    assert away.numbers("t1") == []
    assert caplog.text.count("the diary at my desk does not answer") == caplog.text.count("nobody there") == 1
    away.fail_in = set()
    assert tracker.close()
    assert "the diary at my desk answers again" in caplog.text
    assert away.numbers("t1") == list(range(1, 11))
    assert [m.step for m in client.get_metric_history(tracker.run_ids()[0], "round/objective")] == list(range(1, 11))


def test_after_a_failure_the_connection_is_tested_before_anything_is_sent(open_tracker, monkeypatch, diary) -> None:
    monkeypatch.setattr(sender, "RETRY_AFTER_S", 0.01)
    tracker = open_tracker("asked", sinks=("diary",))
    (away,) = diary
    answer = away.open

    def lost_while_opening(run: Run) -> int:
        if not away.of("open failed"):
            away.fail_in = {"open", "connect"}  # from this call on, so that no other call of the thread comes between
        return answer(run)

    monkeypatch.setattr(away, "open", lost_while_opening)
    tracker.start("t1", "x", small_config(), {})
    until(lambda: len(away.of("connect failed")) > 3)
    assert len(away.of("open failed")) == 1
    assert away.of("open") == []
    away.fail_in = set()
    tracker.finish("t1")
    assert tracker.close()


def test_an_artifact_that_fails_three_times_is_dropped_and_the_run_ends(
    open_tracker, monkeypatch, caplog, diary
) -> None:
    monkeypatch.setattr(sender, "RETRY_AFTER_S", 0.01)
    tracker = open_tracker("artifacts", sinks=("diary",))
    (second_tracker,) = diary
    second_tracker.fail_in = {"artifact"}
    tracker.start("t1", "bulky", small_config(), {})
    tracker.artifact("t1", Files(lambda folder: []))
    until(lambda: len(second_tracker.of("artifact failed")) == 3)
    second_tracker.fail_in = set()
    second = Files(lambda folder: [])
    tracker.artifact("t1", second)
    tracker.finish("t1")
    assert tracker.close()
    assert "bulky: an artifact could not be logged: nobody there" in caplog.text
    assert second_tracker.of("artifact") == [("t1", second)]
    assert [ending.status for _, ending in second_tracker.of("end")] == ["FINISHED"]


def test_a_call_takes_whole_rounds_up_to_the_tracker_s_batch(open_tracker, diary) -> None:
    tracker = open_tracker("batches", sinks=("diary",))
    (second_tracker,) = diary
    second_tracker.batch, second_tracker.hold = 5, threading.Event()
    tracker.start("t1", "x", small_config(), {})
    for step in range(1, 6):
        tracker.round("t1", step, {f"m{i}": 1.0 for i in range(9 if step == 3 else 2)})
    second_tracker.hold.set()
    assert tracker.close()
    sizes = [[round.number for round in rounds] for _, rounds in second_tracker.of("rounds")]
    assert [number for part in sizes for number in part] == [1, 2, 3, 4, 5]
    assert len(sizes) >= 3
    assert all(sum(len(r.values) for r in rounds) <= 5 or len(rounds) == 1 for _, rounds in second_tracker.of("rounds"))


def test_a_required_tracker_that_cannot_be_reached_is_refused(open_tracker, monkeypatch, diary) -> None:
    monkeypatch.setattr(Diary, "connect", lambda self: (_ for _ in ()).throw(ConnectionError("nobody there")))
    with pytest.raises(ConfigError, match=r"tracking.sinks: cannot open 'my desk' \(nobody there\); start that server"):
        open_tracker("needed", sinks=("diary",), required=True)


def test_a_tracker_that_may_wait_is_opened_for_the_first_round(open_tracker, diary, monkeypatch) -> None:
    monkeypatch.setattr(sender, "PATIENCE_S", 60.0)
    monkeypatch.setattr(Diary, "may_wait", lambda self: True)
    opened: list[str] = []
    monkeypatch.setattr(Diary, "connect", lambda self: opened.append("now"))
    tracker = open_tracker("patient", sinks=("diary",))
    tracker.start("t1", "t1", small_config(), {})
    time.sleep(0.3)
    assert opened == []
    tracker.round("t1", 1, {"accuracy": 0.5})
    until(lambda: opened == ["now"])
    tracker.finish("t1")
    assert tracker.close()


def test_a_tracker_that_may_wait_and_is_required_is_opened_at_once(open_tracker, diary, monkeypatch) -> None:
    monkeypatch.setattr(Diary, "may_wait", lambda self: True)
    opened: list[str] = []
    monkeypatch.setattr(Diary, "connect", lambda self: opened.append("now"))
    tracker = open_tracker("required", sinks=("diary",), required=True)
    assert opened == ["now"]
    assert tracker.close()


def test_a_full_disk_costs_one_line_with_the_command_and_drops_no_artifact(
    open_tracker, results, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(sender, "RETRY_AFTER_S", 0.02)
    tracker = open_tracker("full")
    tracker.start("t1", "patient", small_config(), {})
    while not tracker.run_ids():
        threading.Event().wait(0.02)
    whole = {name: getattr(MlflowClient, name) for name in ("log_batch", "log_artifact")}
    attempts: list[str] = []

    def full(name: str) -> Callable[..., None]:
        def call(*_: object, **__: object) -> None:
            attempts.append(name)
            raise RuntimeError("(sqlite3.OperationalError) database or disk is full")

        return call

    monkeypatch.setattr(MlflowClient, "log_batch", full("log_batch"))
    tracker.round("t1", 1, {"round/objective": 0.5})
    while attempts.count("log_batch") < 3:
        threading.Event().wait(0.02)
    monkeypatch.setattr(MlflowClient, "log_artifact", full("log_artifact"))

    def made(folder: Path) -> list[Path]:
        (folder / "a.txt").write_text("a")
        return [folder / "a.txt"]

    tracker.artifact("t1", Files(made))
    monkeypatch.setattr(MlflowClient, "log_batch", whole["log_batch"])
    while attempts.count("log_artifact") < sender.ARTIFACT_ATTEMPTS + 2:
        threading.Event().wait(0.02)
    (line,) = [record.getMessage() for record in caplog.records if "cannot be written" in record.getMessage()]
    assert line.startswith(f"MLflow at {results / 'mlflow.db'} cannot be written (No space left on device; ")
    assert line.endswith(f"python -m hflray.tracking sync {results / 'full'}")
    assert tracker._senders[0].disk_failed
    monkeypatch.setattr(MlflowClient, "log_artifact", whole["log_artifact"])
    tracker.finish("t1")
    assert tracker.close()
    assert not tracker.disk_failed
    assert "a.txt" in {
        artifact.path for artifact in MlflowClient(default_uri(results)).list_artifacts(tracker.run_ids()[0])
    }


def test_an_end_on_a_full_disk_is_remembered(open_tracker, results, monkeypatch, caplog) -> None:
    monkeypatch.setattr(sender, "CLOSE_WITHIN_S", 0.2)
    monkeypatch.setattr(sender, "RETRY_AFTER_S", 0.02)
    tracker = open_tracker("never")
    tracker.start("t1", "patient", small_config(), {})
    while not tracker.run_ids():
        threading.Event().wait(0.02)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(MlflowClient, "log_batch", full)
    tracker.round("t1", 1, {"round/objective": 0.5})
    assert not tracker.close(0.2)
    assert tracker.disk_failed
    assert f"python -m hflray.tracking sync {results / 'never'}" in caplog.text


OWN = """import json
import hflray.tracking


class Mine(hflray.tracking.Sink):
    title = "mine"

    def __init__(self, place):
        self.where = str(place.folder)
        self.path = place.folder / "got.txt"

    def connect(self):
        CONNECT

    def open(self, run):
        return OPEN

    def rounds(self, run, rounds):
        ROUNDS
        with self.path.open("a") as file:
            file.writelines(f"{each.number}\\n" for each in rounds)

    def end(self, run, ending):
        END

    def seen_at(self):
        return SEEN
"""
RIGHT = {"CONNECT": "pass", "OPEN": "-1", "ROUNDS": "pass", "END": "pass", "SEEN": "None"}


def own_sink(folder: Path, **lines: str) -> str:
    """Write a tracker of one's own with other lines; return the pinned reference to it."""
    text = OWN
    for name, line in (RIGHT | lines).items():
        text = text.replace(name, line)
    (folder / "own.py").write_text(text)
    return references.pin(str(folder / "own.py") + ":Mine")


def run_with(folder: Path, sink: str) -> Tracker:
    tracker = Tracker("http://127.0.0.1:9", "tests", "own", folder, sinks=(sink,))
    tracker.start("t1", "first", small_config(), {})
    for step in (1, 2, 3):
        tracker.round("t1", step, {"round/objective": step / 10})
    tracker.finish("t1")
    return tracker


@pytest.mark.parametrize(
    "line, error",
    [
        ("run.params['nothing']", "KeyError"), ("undefined", "NameError"), ("len(3)", "TypeError"),
        ("run.nothing", "AttributeError"), ("1 / 0", "ZeroDivisionError"), ("[][1]", "IndexError"),
        ("int('x')", "ValueError"), ("float('')", "ValueError"),
        ("__import__('no_such_module_x')", "ModuleNotFoundError"),
        ("(_ for _ in ()).throw(AssertionError('no'))", "AssertionError"), ("json.dumps(run)", "TypeError"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["OPEN", "ROUNDS", "END"])
def test_a_bug_of_a_tracker_is_named_at_once_and_the_journal_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str, line: str, error: str
) -> None:
    begin = time.monotonic()
    tracker = run_with(tmp_path, own_sink(tmp_path, **{method: line}))
    assert not tracker.close()
    assert time.monotonic() - begin < 5
    assert tracker.broken
    (said,) = [record.getMessage() for record in caplog.records if "gets nothing more" in record.getMessage()]
    assert says(said, "tracking.sinks: own.py:Mine fails (own.py:", error, "correct it", "sync", str(tmp_path))
    assert "\n" not in said
    assert "does not answer" not in caplog.text
    assert [number for number, _ in tracker.history("t1")] == [1, 2, 3]


@pytest.mark.parametrize("returned", ["None", "'1'", "1.5", "[1]", "True", "-2"])
def test_what_open_returns_wrongly_is_a_bug(tmp_path: Path, caplog: pytest.LogCaptureFixture, returned: str) -> None:
    tracker = run_with(tmp_path, own_sink(tmp_path, OPEN=returned))
    assert not tracker.close()
    assert says(caplog.text, "own.py:Mine", "returned", "accepted: the number of the last round", "method open")


@pytest.mark.parametrize("error", ["ConnectionError", "TimeoutError", "OSError", "json.loads", "RuntimeError"])
def test_a_tracker_that_is_away_is_no_bug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    monkeypatch.setattr(sender, "RETRY_AFTER_S", 0.05)
    once = f"self.__dict__.setdefault('n', []).append(1) or len(self.n) > 2 or (_ for _ in ()).throw({error}('x'))"
    if error == "json.loads":
        once = "self.__dict__.setdefault('n', []).append(1) or len(self.n) > 2 or json.loads('<html>')"
    tracker = run_with(tmp_path, own_sink(tmp_path, ROUNDS=once))
    assert tracker.close()
    assert not tracker.broken
    assert "does not answer" in caplog.text
    assert (tmp_path / "got.txt").read_text().split() == ["1", "2", "3"]


@pytest.mark.parametrize(
    "change, said",
    [
        ({"CONNECT": "run"}, "fails (own.py:13: NameError"),
        ({"CONNECT": "int('x')"}, "fails (own.py:13: ValueError"),
        ({"place.folder /": "place.nowhere /"}, "cannot be built (own.py:10: AttributeError"),
        ({'title = "mine"': "title = 3"}, "returned the int 3 as its title"),
        ({"self.where = ": "self.there = "}, "returned None as its where"),
        (
            {"Mine(hflray.tracking.Sink)": "Mine"},
            "returned a Mine; accepted: a class that extends hflray.tracking.Sink",
        ),
        ({"open(self, run)": "close(self, run)"}, "has no method 'open'"),
    ],
)
def test_a_tracker_that_cannot_begin_is_refused_before_any_training(
    tmp_path: Path, change: dict[str, str], said: str
) -> None:
    own_sink(tmp_path)
    text = OWN
    for name, line in (change | RIGHT if "CONNECT" not in change else RIGHT | change).items():
        text = text.replace(name, line)
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(ConfigError) as error:
        Tracker("http://127.0.0.1:9", "tests", "own", tmp_path, sinks=(references.pin(f"{tmp_path}/own.py:Mine"),))
    assert "own.py:Mine" in str(error.value)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_bug_when_the_sweep_ends_costs_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = run_with(tmp_path, own_sink(tmp_path, SEEN="nothing"))
    assert tracker.close()
    assert tracker.seen_at() == []
    assert says(caplog.text, "tracking.sinks: own.py:Mine fails (own.py:", "NameError")
