"""hflray.tracking.sender: a tracker receives everything once, whatever fails; one that is away causes warnings."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hflray.errors import ConfigError
from hflray.support import references
from hflray.tracking import Files, Journal, Place, Run, Tracker, sender
from hflray.tracking.csv import CSVSink
from hflray.tracking.sink import is_bug, opened
from tests.conftest import cases, own_module, refusal, refusals, says, small_config
from tests.tracking.diary import Diary, until


@pytest.fixture(autouse=True)
def soon(monkeypatch) -> None:
    monkeypatch.setattr(sender, "RETRY_AFTER_S", 0.02)


@pytest.fixture
def opens(tmp_path, diary) -> Callable[..., tuple[Tracker, Diary]]:
    """Return a function that opens a sweep's tracker with a diary, again after a kill."""

    def tracker_of(name: str = "a sweep", **options: object) -> tuple[Tracker, Diary]:
        tracker = Tracker("http://127.0.0.1:9", "tests", name, tmp_path / name, sinks=("diary",), **options)  # type: ignore[arg-type]
        return tracker, diary[-1]

    return tracker_of


def begin(tracker: Tracker, *keys: str) -> None:
    for key in keys or ("t1",):
        tracker.start(key, key, small_config(), {})


def rounds(tracker: Tracker, *numbers: int, key: str = "t1") -> None:
    for number in numbers:
        tracker.round(key, number, {"accuracy": number / 8, **({"first": 1.0} if number == 1 else {})})


def end(tracker: Tracker, key: str = "t1", error: str | None = None) -> None:
    if error is None:
        tracker.artifact(key, "tables")
    tracker.finish(key, error)


def whole(page: Diary, count: int, artifacts: int = 1) -> bool:
    """Check that a run has ended with each of `count` rounds once, all last values, and its artifacts."""
    assert page.numbers() == list(range(1, count + 1))
    ending = page.ending()
    assert ending is not None
    assert ending.values == {"accuracy": count / 8, "first": 1.0}
    return len(page.pages["t1"].artifacts) == artifacts


CALLS = ["connect", "open", "rounds", "artifact", "end"]


@pytest.mark.parametrize("how", ["fail_in", "lost_in"])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_or_whose_answer_is_lost_repeats_no_round(opens, caplog, call: str, how: str) -> None:
    tracker, page = opens()
    setattr(page, how, {call, "open"} if call == "connect" else {call})  # it is called again after a failure only
    begin(tracker)
    rounds(tracker, 1, 2)
    until(lambda: page.numbers() == [1, 2] or "nobody there" in caplog.text)
    rounds(tracker, 3)
    begin_s = time.monotonic()
    end(tracker)
    assert time.monotonic() - begin_s < 0.5  # the driver never waits for a tracker
    until(lambda: "nobody there" in caplog.text)
    setattr(page, how, set())
    assert tracker.close()
    assert whole(page, 3, len(page.of("artifact")))
    assert 1 <= len(page.of("artifact")) <= sender.ARTIFACT_ATTEMPTS
    assert caplog.text.count("the diary at my desk does not answer; keeping the rounds") == 1
    assert caplog.text.count("the diary at my desk answers again") == 1
    logged = [(number, values) for number, _, values in tracker.journal.rounds("t1")]
    assert logged == [(n, {"accuracy": n / 8} | ({"first": 1.0} if n == 1 else {})) for n in (1, 2, 3)]


@pytest.mark.parametrize("call", CALLS[1:])
def test_a_process_that_dies_after_a_call_leaves_nothing_that_is_sent_twice(opens, call: str) -> None:
    """The first tracker never learns that its call has arrived."""
    tracker, page = opens()
    answer, dead = page._call, threading.Event()

    def dies(name: str, *arguments: object, **options: object) -> None:
        answer(name, *arguments, **options)
        if name == call:
            dead.wait(60)

    page._call = dies  # type: ignore[method-assign]
    begin(tracker)
    rounds(tracker, 1, 2, 3)
    end(tracker)
    until(lambda: page.of(call))
    again, page = opens()
    assert again.close()
    assert whole(page, 3, 2 if call == "artifact" else 1)  # that call must not have been the last one
    assert len(page.of("open")) == 1
    third, page = opens()
    assert third.close()
    assert [call[0] for call in page.calls] == ["connect", "open", "end"]
    dead.set()


@pytest.mark.parametrize("events, opened, artifacts", cases("tracking/events"))
@pytest.mark.parametrize("at_once", [False, True])
def test_a_run_arrives_whole_in_any_order_of_events(opens, events, opened, artifacts, at_once: bool) -> None:
    """The tracker sees each event alone, or all events of a process at once; a restart is another process."""
    tracker, page = opens()
    hold = page.hold = threading.Event()
    count = 0
    for event in events.split():
        if event == "restart":
            hold.set()
            assert tracker.close()
            count += len(page.of("open"))
            tracker, page = opens()
            hold = page.hold = threading.Event()
        elif event == "start":
            begin(tracker)
        elif event == "lost":
            tracker.journal.path("t1").unlink()
        elif event == "tables":
            tracker.artifact("t1", "tables")
        elif event in ("end", "error"):
            end(tracker, error="lost" if event == "error" else None)
        else:
            rounds(tracker, int(event))
        if not at_once:
            hold.set()
            until(lambda t=tracker: not t._senders[0].unsent())  # type: ignore[misc]
    hold.set()
    assert tracker.close()
    ending = page.ending()
    assert ending is not None
    assert ending.status == "FINISHED"
    count += len(page.of("open"))
    if at_once:
        assert whole(page, 3, len(page.pages["t1"].artifacts) or -1)
        assert (count <= opened, len(page.pages["t1"].artifacts) <= artifacts) == (True, True)
    else:
        assert whole(page, 3, artifacts)
        assert count == opened


def test_a_line_that_the_storage_does_not_have_is_not_sent_yet(opens, tmp_path) -> None:
    failing: list[bool] = []

    def mirror(key: str) -> None:
        if failing:
            raise OSError("the storage is away")

    tracker, page = opens(journal=Journal(tmp_path / "a sweep", mirror))
    page.hold = threading.Event()
    begin(tracker)
    rounds(tracker, 1)
    failing.append(True)
    with pytest.raises(OSError, match="the storage is away"):
        rounds(tracker, 2)
    failing.clear()
    page.hold.set()  # until here the thread has sent nothing
    until(lambda: not tracker._senders[0].unsent())
    assert page.numbers() == [1]
    rounds(tracker, 3)
    end(tracker)
    assert tracker.close()
    assert whole(page, 3)


def test_runs_that_have_ended_are_dropped_and_their_journals_not_read_again(opens, monkeypatch) -> None:
    tracker, _ = opens()
    read: list[tuple[str, int]] = []
    tail = Journal.tail
    monkeypatch.setattr(
        Journal, "tail", lambda self, key, offset, until: read.append((key, offset)) or tail(self, key, offset, until)
    )
    begin(tracker, "t1", "t2")
    (thread,) = tracker._senders
    for number in (1, 2, 3):
        rounds(tracker, number)
        until(lambda: not thread.unsent())
    end(tracker)
    until(lambda: not thread.unsent())
    read.clear()
    for number in (1, 2, 3):
        rounds(tracker, number, key="t2")
        until(lambda: not thread.unsent())
    assert list(thread._sent) == ["t2"]
    assert {key for key, _ in read} == {"t2"}
    assert min(offset for _, offset in read) > 1000  # the configuration is not read again
    assert tracker.close()


def test_what_was_missed_is_sent_in_whole_rounds_and_few_calls(opens, caplog) -> None:
    tracker, page = opens()
    page.fail_in, page.batch = {"rounds"}, 100
    begin(tracker)
    rounds(tracker, 1)
    until(lambda: "nobody there" in caplog.text)
    for number in range(2, 101):
        tracker.round("t1", number, {f"m{i}": 1.0 for i in range(150 if number == 50 else 3)})
    assert sum(len(sent.values) for sent in tracker._senders[0]._sent.values()) == 0
    page.fail_in = set()
    assert tracker.close()
    assert page.numbers() == list(range(1, 101))
    calls: list[Sequence] = [sent for _, sent in page.of("rounds")]  # type: ignore[misc]
    # 33 rounds each, and the large one alone; an attempt that began before the last round leaves a part for the next.
    assert len(calls) in (5, 6)
    assert all(sum(len(round.values) for round in sent) <= 100 or len(sent) == 1 for sent in calls)


def test_an_interrupt_ends_the_wait_for_the_server(opens, monkeypatch, caplog) -> None:
    tracker, page = opens()
    page.hold = threading.Event()
    begin(tracker)

    def interrupted(timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tracker._senders[0]._thread, "join", interrupted)
    assert not tracker.close()
    assert "python -m hflray.tracking sync" in caplog.text
    page.hold.set()


def test_a_tracker_has_time_while_things_arrive_and_no_more(opens, tmp_path, monkeypatch, caplog) -> None:
    """The limit holds from one thing that arrives to the next, and each line says how long nothing has arrived."""
    monkeypatch.setattr(sender, "STALLED_AFTER_S", 0.5)
    monkeypatch.setattr(sender, "SAY_EVERY_S", 0.2)
    tracker, page = opens("a b")
    answer = page._call
    page._call = lambda name, *rest, **more: (time.sleep(0.3), answer(name, *rest, **more))  # type: ignore[method-assign]
    begin(tracker, "t1", "t2", "t3")
    for key in ("t1", "t2", "t3"):  # 2 s together
        rounds(tracker, 1, key=key)
        end(tracker, key)
    assert tracker.close()
    assert caplog.text.count("runs are still to be sent, and nothing has arrived for 0 s (given up after 0 s)") >= 3

    caplog.clear()
    tracker, page = opens("a b")
    until(lambda: not tracker._senders[0].unsent())
    page.hold = threading.Event()
    rounds(tracker, 2)
    begin_s = time.monotonic()
    assert not tracker.close()
    assert time.monotonic() - begin_s < 10
    page.hold.set()
    assert "the diary has not received everything of t1. It is all in" in caplog.text
    assert f"python -m hflray.tracking sync '{tmp_path / 'a b'}'" in caplog.text


def test_a_server_that_hangs_delays_neither_the_start_nor_the_end_for_ever(opens, monkeypatch, caplog) -> None:
    monkeypatch.setattr(sender, "CONNECT_WITHIN_S", 0.3)
    forever = threading.Event()
    monkeypatch.setattr(Diary, "connect", lambda self: forever.wait(60))
    with pytest.raises(
        ConfigError, match=r"tracking.sinks: cannot open 'my desk' \(no answer in 0 s\); start that server"
    ):
        opens(required=True)
    tracker, _ = opens()
    assert "does not answer; keeping the rounds for later: no answer in 0 s" in caplog.text
    begin(tracker)
    rounds(tracker, 1)
    begin_s = time.monotonic()
    assert not tracker.close(within_s=0.5)
    assert time.monotonic() - begin_s < 10
    assert "has not received everything of t1" in caplog.text
    forever.set()


def test_an_unreachable_tracker_delays_no_other(tmp_path, diary) -> None:
    tracker = Tracker("http://127.0.0.1:9", "tests", "two", tmp_path, sinks=("diary", "csv"))
    (away,) = diary
    away.fail_in = {"connect", "rounds"}
    begin(tracker)
    rounds(tracker, *range(1, 11))
    end(tracker)
    until(lambda: (tmp_path / "csv" / "t1.csv").exists())
    until(lambda: len((tmp_path / "csv" / "t1.csv").read_text().splitlines()) == 11)
    assert away.numbers() == []
    away.fail_in = set()
    assert tracker.close()
    assert whole(away, 10)


def test_after_a_failure_the_connection_is_tested_before_anything_is_sent(opens, monkeypatch) -> None:
    tracker, away = opens()
    answer = away.open

    def lost_while_opening(run: Run) -> int:
        if not away.of("open failed"):
            away.fail_in = {"open", "connect"}  # from this call on, so that no other call of the thread comes between
        return answer(run)

    monkeypatch.setattr(away, "open", lost_while_opening)
    begin(tracker)
    until(lambda: len(away.of("connect failed")) > 3)
    assert len(away.of("open failed")) == 1
    assert away.of("open") == []
    away.fail_in = set()
    tracker.finish("t1")
    assert tracker.close()


def test_an_artifact_that_fails_three_times_is_dropped_and_the_run_ends(opens, tmp_path, caplog) -> None:
    tracker, page = opens()
    answer = page._call

    def bulky(name: str, *arguments: object, **options: object) -> None:
        page.fail_in = {"artifact"} if len(page.of("artifact failed")) < sender.ARTIFACT_ATTEMPTS else set()
        answer(name, *arguments, **options)

    page._call = bulky  # type: ignore[method-assign]
    begin(tracker)
    rounds(tracker, 1)
    (tmp_path / "a sweep" / "a.txt").write_text("a")
    tracker.artifact("t1", "tables")
    tracker.artifact("t1", "file", "a.txt")
    tracker.finish("t1")
    assert tracker.close()
    assert "t1: its tables cannot be sent: nobody there" in caplog.text
    assert len(page.of("artifact failed")) == sender.ARTIFACT_ATTEMPTS
    assert whole(page, 1)
    (sent,) = page.pages["t1"].artifacts
    assert isinstance(sent, Files)
    assert [path.name for path in sent.make(tmp_path)] == ["a.txt"]


@pytest.mark.parametrize("kind", ["nonsense", "model"])
def test_an_artifact_that_cannot_be_made_costs_one_warning_and_no_attempt(opens, monkeypatch, caplog, kind) -> None:
    tracker, page = opens()
    begin(tracker)
    rounds(tracker, 1)
    for name in (kind, "tables"):
        tracker.journal.write("t1", {"artifact": name})

    def made(run: Run) -> None:
        raise ValueError("no model")

    monkeypatch.setattr(tracker._senders[0]._artifacts, "_model", made)
    tracker.finish("t1")
    assert tracker.close()
    assert whole(page, 1)
    assert caplog.text.count(f"t1: its {kind} cannot be sent") == 1
    assert "does not answer" not in caplog.text


@pytest.mark.parametrize("required", [False, True])
def test_a_tracker_that_may_wait_is_opened_for_the_first_round(opens, monkeypatch, required: bool) -> None:
    monkeypatch.setattr(sender, "PATIENCE_S", 60.0)
    monkeypatch.setattr(Diary, "may_wait", lambda self: True)
    tracker, page = opens(required=required)
    begin(tracker)
    time.sleep(0.3)
    assert len(page.of("connect")) == required
    rounds(tracker, 1)
    until(lambda: page.of("connect"))
    end(tracker)
    assert tracker.close()


def test_a_full_disk_costs_one_line_with_the_command_and_drops_no_artifact(
    opens, tmp_path, monkeypatch, caplog
) -> None:
    tracker, page = opens()
    page.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    page.fail_in = {"rounds"}
    begin(tracker)
    rounds(tracker, 1)
    until(lambda: len(page.of("rounds failed")) == 3)
    end(tracker)
    page.fail_in = {"artifact"}
    until(lambda: len(page.of("artifact failed")) > sender.ARTIFACT_ATTEMPTS)
    (line,) = [record.getMessage() for record in caplog.records if "cannot be written" in record.getMessage()]
    assert line.startswith("the diary at my desk cannot be written (No space left on device; ")
    assert line.endswith(f"python -m hflray.tracking sync '{tmp_path / 'a sweep'}'")
    monkeypatch.setattr(sender, "CLOSE_WITHIN_S", 0.2)
    assert not tracker.close(0.2)
    assert tracker.disk_failed
    again, page = opens()
    assert again.close()
    assert not again.disk_failed
    assert whole(page, 1)


OWN = own_module("sink")
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


BUGS = (
    KeyError, NameError, TypeError, AttributeError, ZeroDivisionError, IndexError, ValueError, ModuleNotFoundError,
    AssertionError, ConfigError,
)  # fmt: skip
AWAY = (
    ConnectionError("x"), TimeoutError("x"), OSError("x"), json.JSONDecodeError("x", "<html>", 0), RuntimeError("x"),
    UnicodeDecodeError("utf-8", b"x", 0, 1, "x"),
)  # fmt: skip


def test_which_errors_are_bugs_of_a_tracker_of_ones_own(diary, tmp_path) -> None:
    mine, ours = Diary(Place("", "", "", tmp_path)), CSVSink(Place("", "", "", tmp_path))
    assert all(is_bug(mine, error("x")) and not is_bug(ours, error("x")) for error in BUGS)
    assert not any(is_bug(mine, error) for error in AWAY)


@pytest.mark.parametrize("method, line, error", [
    ("OPEN", "run.params['nothing']", "KeyError"), ("ROUNDS", "json.dumps(run)", "TypeError"),
    ("END", "int('x')", "ValueError"),
])  # fmt: skip
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
    assert [round.number for round in tracker.journal.rounds("t1")] == [1, 2, 3]


@pytest.mark.parametrize("returned", [None, "1", 1.5, [1], True, -2])
def test_what_open_returns_wrongly_is_a_bug(diary, tmp_path: Path, returned: object) -> None:
    sink = Diary(Place("", "", "", tmp_path))
    sink.open = lambda run: returned  # type: ignore[method-assign,assignment,return-value]
    with refusal(ConfigError, "Diary", "returned", "accepted: the number of the last round", "method open"):
        opened(sink, Run("t1", "t1"))


@pytest.mark.parametrize("change, said", refusals("tracking/sinks_of_ones_own"))
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


def test_a_bug_in_an_artifact_is_named_and_costs_only_that_artifact(opens, monkeypatch, caplog) -> None:
    tracker, page = opens()
    page.fail_in, page.error = {"artifact"}, KeyError("x")
    begin(tracker)
    rounds(tracker, 1)
    end(tracker)
    assert tracker.close()
    assert "t1: its tables cannot be sent: Diary fails (KeyError: 'x')" in caplog.text
    assert whole(page, 1, 0)


def test_a_bug_when_the_sweep_ends_costs_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = run_with(tmp_path, own_sink(tmp_path, SEEN="nothing"))
    assert tracker.close()
    assert tracker.seen_at() == []
    assert says(caplog.text, "tracking.sinks: own.py:Mine fails (own.py:", "NameError")


def test_a_process_that_another_one_has_replaced_sends_nothing_more(opens, tmp_path) -> None:
    """It was paused, and meanwhile the other one has ended the run, which must not begin again."""
    held = [True]
    tracker, page = opens(journal=Journal(tmp_path / "a sweep", held=lambda: held[0]))
    begin(tracker)
    until(lambda: page.of("open"))
    held[0] = False
    begin(tracker)
    rounds(tracker, 1)
    begin_s = time.monotonic()
    assert not tracker.close()
    assert time.monotonic() - begin_s < 5
    assert [call[0] for call in page.calls] == ["connect", "open"]
