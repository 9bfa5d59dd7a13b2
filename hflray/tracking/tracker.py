"""The public interface: a sweep's runs go to the journal, and from there to every tracker of ``tracking.sinks``."""

from __future__ import annotations

import json
import logging
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

from hflray import metrics, registry
from hflray.config import (
    ExperimentConfig,
    TrackingConfig,
    flatten,
    named_settings,
    references_in,
    refuse_unpinned,
    to_yaml,
)  # fmt: skip
from hflray.errors import ConfigError
from hflray.support import references
from hflray.support.provenance import environment
from hflray.support.references import named, short, spoken
from hflray.support.returned import is_ours
from hflray.support.files import refuse_links
from hflray.support.checksum import checked as unsealed
from hflray.tracking.journal import Journal, Tables, rounds_of
from hflray.tracking.late_artifacts import remains
from hflray.tracking.mlflow import MLflowSink, database_uri
from hflray.tracking.sender import CLOSE_WITHIN_S, Sender
from hflray.tracking.sink import Artifact, Ending, Files, Place, Round, Run, build, is_bug, opened, reason
from hflray.tracking.timelines import write_timeline

log = logging.getLogger(__name__)

LEARNING = ("learning", "agent")  # the sections of `hflray.sweep.tasks.Task.learns`
SINKS = TrackingConfig().sinks  # the default, which also holds for sweeps from before the setting existed


@cache
def _environment_text() -> str:
    return json.dumps(environment(), indent=1)


def default_uri(results: Path) -> str:
    """Return the URI of a SQLite file in the results folder, which needs no server."""
    return database_uri(results.resolve() / "mlflow.db")


def titles(sinks: Sequence[str]) -> str:
    """Return the titles of the trackers with these names. Raises ConfigError: a tracker cannot be loaded."""
    return ", ".join(getattr(registry.resolve("sink", name), "title", short(name)) for name in sinks) or "no tracker"


def try_sinks(sinks: Sequence[str], uri: str, experiment: str) -> None:
    """Build the trackers of the user's own in a folder that is then removed, as `--dry-run` does.

    Raises:
        ConfigError: one cannot be built.
    """
    for name in sinks:
        if not is_ours(registry.resolve("sink", name)):
            with tempfile.TemporaryDirectory() as folder:
                build(name, Place(uri, experiment, "dry-run", Path(folder)))


def try_sink(name: str) -> str | None:
    """Send a run of two rounds to a tracker of the user's own, in a folder that is then removed.

    Returns:
        What is wrong, in one line; None: nothing, or the tracker cannot be reached, which is no fault of its code.

    Raises:
        ConfigError: it cannot be built.
    """
    with tempfile.TemporaryDirectory() as folder:
        sink = build(name, Place(default_uri(Path(folder)), "check", "check", Path(folder)))
        try:
            sink.connect()
            run = Run("check", "check", params=flatten(ExperimentConfig().model_dump(mode="json")))
            last = opened(sink, run)
            rounds = [Round(number, _now_ms(), {metrics.ROUND_OBJECTIVE: 1.0}) for number in (1, 2)]
            sink.rounds(run, [round for round in rounds if round.number > last])
            sink.has_all(run)
            sink.end(run, Ending("FINISHED", values=rounds[-1].values))
            sink.seen_at()
        except Exception as error:  # a user's class may raise any type
            if isinstance(error, ConfigError):
                return str(error)
            return (
                f"{sink.setting}: {named(sink)} fails ({references.reason(error)}); correct it"
                if is_bug(sink, error)
                else None
            )
    return None


class Tracker:
    """Writes a sweep's runs to the journal, and from there to each tracker in a thread of its own.

    Args:
        uri: MLflow's tracking URI.
        experiment: the name of the MLflow experiment, which is created if it does not exist.
        sweep: the tag ``hflray.sweep`` of all runs.
        folder: the sweep's results folder.
        required: whether to raise if a tracker cannot be opened now, instead of warning and retrying.
        sinks: the names of the trackers, see `hflray.tracking.sink`.

    Attributes:
        disk_failed: whether `close` left something unsent because the tracker's disk on this machine was full or
            failed.
        broken: whether `close` left something unsent because a tracker of the user's own has a bug.

    Raises:
        ConfigError: a tracker cannot be opened although `required`, or a name is unknown.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        sweep: str,
        folder: Path,
        required: bool = False,
        sinks: Sequence[str] = SINKS,
        journal=None, place=None, dataset=None,
    ) -> None:
        self.uri, self.sweep, self.folder = uri, sweep, folder
        self.journal = journal or Journal(folder)
        self.disk_failed = self.broken = False
        self._lock, self._keys = threading.Lock(), dict[str, None]()
        place = Place(uri, experiment, sweep, folder)
        opened = [build(name, place) for name in sinks]
        self._mlflow = next((sink for sink in opened if isinstance(sink, MLflowSink)), None)
        self._senders = [Sender(sink, self.journal, self._lock) for sink in opened]
        for sender in self._senders:
            sender.begin(required)

    @property
    def experiment_id(self) -> str | None:
        """MLflow's id of the experiment; None if MLflow was never reached."""
        return self._mlflow.experiment_id if self._mlflow else None

    def start(
        self,
        key: str,
        name: str,
        config: ExperimentConfig,
        tags: Mapping[str, str],
        dataset: Mapping[str, str] | None = None,
        learns: str = "",
    ) -> None:
        """Open a run, or find it again after a restart by its tags ``hflray.sweep`` and ``hflray.trial``.

        The settings of the sections of `LEARNING` are logged only for a run that `learns` by this section or sets one
        of them, because no comparison of other runs needs them.
        """
        unset = [name for name in LEARNING if name != learns and not getattr(config, name).model_fields_set]
        unused = ("tracking.", *(f"{name}." for name in unset))
        by_key = references_in(config.model_dump(mode="json"))
        run = Run(
            key=key,
            name=name,
            params={k: v for k, v in flatten(config.model_dump(mode="json")).items() if not k.startswith(unused)},
            tags={
                "hflray.sweep": self.sweep,
                "hflray.trial": key,
                "hflray.dataset": spoken(config.data.name),
                "hflray.scheduler": spoken(config.scheduling.name),
                "hflray.assigner": spoken(config.assignment.name),
                **{f"reference/{named_settings()[setting]}": ", ".join(names) for setting, names in by_key.items()},
                **tags,
            },
            artifacts={"config.yaml": to_yaml(config), "environment.json": _environment_text(), **_texts(by_key)},
            dataset=dict(dataset) if dataset else None,
        )
        has_backlog = self.journal.path(key).exists()  # trackers may lack rounds of an earlier process
        self.journal.begin(run, _now_ms())
        self._open(run, has_backlog)

    def round(
        self,
        key: str,
        step: int,
        values: Mapping[str, float],
        schedule: Mapping[str, Any] | None = None,
        devices: Mapping[str, Any] | None = None,
        timeline: str | None = None,
    ) -> None:
        """Log one round's metrics with the round as the step; values that are not finite are left out.

        `schedule` (the devices of the round with their edges and resources) and `devices` (the properties of all
        devices, which hold for all rounds) go to the journal, and from there into the run's `tables`. `timeline` (see
        `hflray.sweep.tasks.Result`) goes to the journal, and from there into the file of `timeline`.

        Raises:
            OSError: the journal cannot be written. No tracker then gets the round.
        """
        completed = Round(
            step, _now_ms(), {name: float(value) for name, value in values.items() if math.isfinite(value)}
        )
        if devices is not None:
            self.journal.write(key, {"devices": devices})
        entry = {"round": step, "time": completed.time_ms, "metrics": completed.values}
        details = {"schedule": schedule, "timeline": timeline}
        with self._lock:
            self.journal.write(key, entry | {name: value for name, value in details.items() if value is not None})
            for sender in self._senders:
                sender.round(key, completed)

    def artifact(self, key: str, artifact: Artifact) -> None:
        """Store `Files` or the `FinalModel` with a run. Each tracker makes three attempts."""
        return

    def timeline(self, key: str) -> None:
        """Write the timeline of a run, if it has one, and store it with the run; see `hflray.tracking.timelines`.

        Raises:
            OSError: the file cannot be written.
        """
        try:
            path = write_timeline(self.journal, key)
        except ValueError as error:
            log.warning("%s: its timeline is not written: %s", key, error)
            return
        if path is not None:
            self.artifact(key, Files(lambda folder: [path]))

    def finish(self, key: str, error: str | None = None, tags: Mapping[str, str] | None = None) -> None:
        """Close a run as FINISHED, or as FAILED with the reason as the tag ``hflray.error``, and set `tags`."""
        if key not in self._keys:
            return
        all_tags = {**(tags or {}), **({"hflray.error": error} if error else {})}
        ending = Ending("FAILED" if error else "FINISHED", error, all_tags)
        self.journal.end(key, ending)
        for sender in self._senders:
            sender.end(key, ending)

    def history(self, key: str) -> list[tuple[int, dict[str, float]]]:
        """Return the journal's rounds of a run as (number, metrics), each once, in ascending order."""
        return [(round.number, round.values) for round in rounds_of(self.journal.entries(key))]

    def tables(self, key: str) -> Tables:
        """Return the journal of a run as tables."""
        return Tables.of(self.journal.entries(key))

    def ended(self, key: str) -> tuple[bool, str | None]:
        """Return whether a run has ended according to the journal, and the reason if it failed."""
        ending = self.journal.ending(key)
        return ending is not None, ending.error if ending else None

    def end_tags(self, key: str) -> dict[str, str]:
        """Return the tags with which a run was closed; they are empty if it has not ended."""
        ending = self.journal.ending(key)
        return dict(ending.tags) if ending else {}

    def run_ids(self, keys: Iterable[str] | None = None) -> list[str]:
        """Return MLflow's ids of the runs in the order of `keys`, or of their start. Runs without an id are skipped."""
        run_ids = dict(self._mlflow.run_ids) if self._mlflow else {}
        return [run_ids[key] for key in (self._keys if keys is None else keys) if key in run_ids]

    def seen_at(self) -> list[str]:
        """Return a line for each tracker that says where its runs can be seen."""
        lines = []
        for sender in self._senders:
            try:
                lines.append(sender.sink.seen_at())
            except Exception as error:  # a user's class may raise any type
                log.warning("%s: %s fails (%s)", sender.sink.setting, named(sender.sink), references.reason(error))
        return [line for line in lines if line]

    def close(self, within_s: float = CLOSE_WITHIN_S) -> bool:
        """Send the remaining data; return True if everything arrived.

        A tracker has time as long as it takes something, and `within_s` seconds if it does not answer; see
        `Sender.wait`. Ctrl-C ends the wait.
        """
        for sender in self._senders:
            sender.close_soon()
        began_s = time.monotonic()
        with suppress(KeyboardInterrupt):
            for sender in self._senders:
                sender.wait(began_s, within_s)
        complete = True
        for sender in self._senders:
            if incomplete := sender.unsent():
                complete = False
                self.disk_failed |= sender.disk_failed
                self.broken |= sender.broken
                log.warning(
                    "%s has not received everything of %s. It is all in %s; %s: python -m hflray.tracking sync %s",
                    sender.sink.title, ", ".join(incomplete), self.journal.folder,
                    "when it is corrected" if sender.broken else sender.sink.later, quote(str(self.folder)),
                )  # fmt: skip
        return complete

    def adopt(self, key: str, products: Sequence[Path] = ()) -> None:
        """Take over a run from the journal, to send the data that the trackers lack.

        Args:
            key: the run's key.
            products: further files that belong to the run.
        """
        run = self.journal.run(key)
        if run is None:
            return
        ending = self.journal.ending(key)

        def again() -> list[Artifact]:
            if ending is None or ending.error is not None:
                return []
            return [*remains(self.journal, run), *([Files(lambda folder: products)] if products else [])]

        self._open(run, has_backlog=True, ending=ending, again=again)

    def adopt_all(self) -> None:
        """Take over every run of the journal."""
        for key in self.journal.run_keys():
            self.adopt(key)

    def _open(
        self,
        run: Run,
        has_backlog: bool,
        ending: Ending | None = None,
        again: Callable[[], list[Artifact]] = list,
    ) -> None:
        self._keys[run.key] = None
        for sender in self._senders:
            sender.open(run, has_backlog, ending, again)


def _texts(by_key: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the texts behind references by the path of their artifact."""
    sources = references.sources_of(name for names in by_key.values() for name in names)
    return {f"references/{name}": source.text for name, source in references.as_files(sources)}


def _now_ms() -> int:
    return int(time.time() * 1000)


def _corrected(name: str, sources: Sequence[references.Source]) -> str:
    """Return the reference to the present text of a tracker's file, which may have been corrected since the sweep.

    A tracker only receives runs, so that another text changes no result. Without the file, the kept text stays.
    """
    reference = references.parse(name)
    for source in sources:
        if reference is None or (source.name, source.sha256) != (reference.source, reference.sha256):
            continue
        if not source.is_file or not Path(source.path).is_file():
            return name
        now = references.pin(f"{source.path}:{reference.thing}")
        if now != name:
            log.warning("%s has changed since the sweep began; its present text gets the runs", source.path)
        return now
    return name


def sync(folder: Path, uri: str | None = None) -> bool:
    """Send the journal's missing data to MLflow and the sweep's other trackers; return True if everything arrived.

    Args:
        folder: the sweep's results folder.
        uri: MLflow's tracking URI; None stands for the URI to which the sweep was logged.

    Raises:
        ConfigError: the folder holds no sweep, or a tracker cannot be opened.
    """
    try:
        content = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
        sweep = unsealed(content)
        sources = references.from_json(sweep.get("references", ()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder}: holds no sweep ({reason(error)}); give the folder of a sweep's results"
        ) from error
    refuse_links(folder)
    refuse_unpinned({"tracking": {"sinks": sweep.get("sinks")}}, folder / "sweep.json")
    sinks = dict.fromkeys([*SINKS, *sweep.get("sinks", ())])
    if is_mine(content, f"sweep.json of {folder.resolve().name}"):  # a stranger's files do not run
        references.adopt(sources)
        sinks = dict.fromkeys(_corrected(name, sources) for name in sinks)
    tracker = Tracker(uri or sweep["uri"], sweep["experiment"], folder.name, folder, required=True, sinks=list(sinks))
    tracker.adopt_all()
    return tracker.close()
