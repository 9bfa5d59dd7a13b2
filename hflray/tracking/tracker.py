"""The public interface: a sweep's runs go to the journal, and from there to every tracker of ``tracking.sinks``."""

from __future__ import annotations

import ast
import json
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

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
from hflray.support.checksum import checked
from hflray.support.files import refuse_links
from hflray.support.provenance import environment
from hflray.support.reader import fit, read_json
from hflray.support.references import named, short, spoken
from hflray.tracking.addresses import DATABASE, of_folder
from hflray.tracking.artifacts import KINDS, Artifacts, load, write_timeline
from hflray.tracking.journal import Journal
from hflray.tracking.mlflow import MLflowSink, database_uri
from hflray.tracking.schema import TrackedContent
from hflray.tracking.sender import CLOSE_WITHIN_S, Sender
from hflray.tracking.sink import Ending, Place, Round, Run, build, is_bug, opened, reason

if TYPE_CHECKING:
    from hflray.data import Dataset

log = logging.getLogger(__name__)

LEARNING = ("learning", "agent")  # the sections of `hflray.sweep.tasks.Task.learns`
SINKS = TrackingConfig().sinks  # the default, which also holds for sweeps from before the setting existed


@cache
def _environment_text() -> str:
    return json.dumps(environment(), indent=1)


def default_uri(results: Path) -> str:
    """Return the URI of a SQLite file in the results folder, which needs no server."""
    return database_uri(results.resolve() / DATABASE)


def titles(sinks: Sequence[str]) -> str:
    """Return the titles of the trackers with these names. Raises ConfigError: a tracker cannot be loaded."""
    return ", ".join(getattr(registry.resolve("sink", name), "title", short(name)) for name in sinks) or "no tracker"


def try_sinks(sinks: Sequence[str], uri: str, experiment: str) -> None:
    """Build the trackers in a folder that is then removed, as `--dry-run` does.

    Raises:
        ConfigError: one cannot be built.
    """
    for name in sinks:
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
            bug = f"{sink.setting}: {named(sink)} fails ({references.reason(error)}); correct it"
            return bug if is_bug(sink, error) else None
    return None


class Tracker:
    """Writes a sweep's runs to the journal, which a thread for each tracker reads and sends.

    The runs that the journal holds already are sent as well, as far as a tracker lacks them.

    Args:
        uri: MLflow's tracking URI.
        experiment: the name of the MLflow experiment, which is created if it does not exist.
        sweep: the tag ``hflray.sweep`` of all runs.
        folder: the sweep's results folder.
        required: whether to raise if a tracker cannot be opened now, instead of warning and retrying.
        sinks: the names of the trackers, see `hflray.tracking.sink`.
        journal: the sweep's journal; None: the one in `folder`, without a mirror.
        place: where the sweep's checkpoints are (`hflray.support.checkpoint.Checkpoints`); None: in `folder`.
        dataset: returns the data set of a run, whose final model needs it, or None.

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
        journal: Journal | None = None,
        place: str | None = None,
        dataset: Callable[[ExperimentConfig], Dataset | None] = load,
    ) -> None:
        self.uri, self.sweep, self.folder = uri, sweep, folder
        self.journal = journal or Journal(folder)
        self.disk_failed = self.broken = False
        where = Place(uri, experiment, sweep, folder)
        built = [build(name, where) for name in sinks]
        self._mlflow = next((sink for sink in built if isinstance(sink, MLflowSink)), None)
        artifacts = Artifacts(self.journal, place or str(folder), dataset)
        self._senders = [Sender(sink, self.journal, artifacts) for sink in built]
        for sender in self._senders:
            sender.begin(required)
        self._keys = dict.fromkeys(self.journal.run_keys())
        for key in self._keys:
            self._tell(key, begins=True)

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

        Raises:
            OSError: the journal cannot be written. No tracker then gets the line. The same holds for the other methods.
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
        self.journal.begin(run, _now_ms())
        self._keys[key] = None
        self._tell(key, begins=True)

    def round(
        self,
        key: str,
        step: int,
        values: Mapping[str, float],
        schedule: Mapping[str, Any] | None = None,
        devices: Mapping[str, Any] | None = None,
        timeline: str | None = None,
        model_hash: str | None = None,
    ) -> None:
        """Log one round's metrics with the round as the step; values that are not finite are left out.

        `schedule` (the devices of the round with their edges and resources) and `devices` (the properties of all
        devices, which hold for all rounds) go to the journal, and from there into the run's tables. `timeline` (see
        `hflray.sweep.tasks.Result`) goes to the journal, and from there into the run's timeline. `model_hash` is the
        SHA-256 of the global model after the round.
        """
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        if devices is not None:
            self.journal.write(key, {"devices": devices})
        details = {"model_hash": model_hash, "schedule": schedule, "timeline": timeline}
        entry = {"round": step, "time": _now_ms(), "metrics": finite}
        self.journal.write(key, entry | {name: value for name, value in details.items() if value is not None})
        self._tell(key)

    def artifact(self, key: str, kind: str, path: str | None = None) -> None:
        """Store an artifact with a run at its end. It is made when it is sent, see `hflray.tracking.artifacts`.

        Args:
            key: the run's key.
            kind: one of `hflray.tracking.artifacts.KINDS`.
            path: the path of a ``file``, relative to the sweep's folder.
        """
        assert kind in KINDS, kind
        self.journal.write(key, {"artifact": kind} | ({} if path is None else {"path": path}))
        self._tell(key)

    def timeline(self, key: str) -> None:
        """Write the timeline of a run, if it has one (`hflray.tracking.artifacts`), and store it with the run.

        Raises:
            OSError: the file cannot be written.
        """
        try:
            path = write_timeline(self.journal, key)
        except ValueError as error:
            log.warning("%s: its timeline is not written: %s", key, error)
            return
        if path is not None:
            self.artifact(key, "timeline")

    def finish(self, key: str, error: str | None = None, tags: Mapping[str, str] | None = None) -> None:
        """Close a run as FINISHED, or as FAILED with the reason as the tag ``hflray.error``, and set `tags`."""
        if key not in self._keys:
            return
        all_tags = {**(tags or {}), **({"hflray.error": error} if error else {})}
        self.journal.end(key, Ending("FAILED" if error else "FINISHED", error, all_tags))
        self._tell(key)

    def _tell(self, key: str, begins: bool = False) -> None:
        """Tell the senders that a run's journal may be sent up to its present end."""
        size = self.journal.size(key)
        for sender in self._senders:
            sender.hear(key, size, begins)

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


def _texts(by_key: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the texts behind references by the path of their artifact."""
    sources = references.sources_of(name for names in by_key.values() for name in names)
    return {f"references/{name}": source.text for name, source in references.as_files(sources)}


def _now_ms() -> int:
    return int(time.time() * 1000)


def _corrected(name: str, sources: Iterable[references.Source], outside: Path) -> str:
    """Return the reference to the present text of a tracker's own file, which was corrected after the sweep.

    A tracker only receives runs, so that another text changes no result.

    Args:
        name: the name of a tracker.
        sources: the texts that are not those of the user's own files (`references.adopt_own`).
        outside: see `references.own_text`.

    Raises:
        ConfigError: the file is not the user's own, or no longer defines the tracker.
    """
    reference = references.parse(name)
    for source in sources:
        if reference is None or (source.name, source.sha256) != (reference.source, reference.sha256):
            continue
        text = references.own_text(source, outside) if source.is_file else None
        if text is None or not _defines_sink(text, reference.thing):
            raise ConfigError(
                f"tracking.sinks: {spoken(name)} runs only from your own file outside the results, and {source.path} "
                "is none or has no such tracker; put it there (the sweep's folder keeps its text in references/)"
            )
        log.warning("%s has changed since the sweep began; its present text gets the runs", source.path)
        return references.pin(f"{source.path}:{reference.thing}")
    return name


def _defines_sink(text: str, name: str) -> bool:
    """Return whether a text looks like that of a tracker: a stranger's folder may name any file of the user's."""
    with suppress(SyntaxError, ValueError):
        return "Sink" in text and any(isinstance(n, ast.ClassDef) and n.name == name for n in ast.parse(text).body)
    return False


def sync(folder: Path, uri: str | None = None) -> bool:
    """Send the journal's missing data to MLflow and the sweep's other trackers; return True if everything arrived.

    A tracker of the user's own runs only from the user's own file (`hflray.support.references.own_text`), and not from
    the text that the folder keeps.

    Args:
        folder: the sweep's results folder.
        uri: MLflow's tracking URI; None stands for the URI to which the sweep was logged.

    Raises:
        ConfigError: the folder holds no sweep, only the folder names MLflow's address, or a tracker cannot be opened.
    """
    outside = folder.resolve().parent
    try:
        sweep = checked(read_json(folder / "sweep.json", inside=folder))
        fit(TrackedContent, sweep)
        sources = references.from_json(sweep.get("references", ()))
        uri = of_folder(sweep["uri"], outside, uri)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{folder}: holds no sweep ({reason(error)}); give the folder of a sweep's results"
        raise ConfigError(message) from error
    refuse_links(folder)
    refuse_unpinned({"tracking": {"sinks": sweep.get("sinks")}}, folder / "sweep.json")
    foreign = references.adopt_own(sources, outside)
    sinks = dict.fromkeys(_corrected(name, foreign, outside) for name in [*SINKS, *(sweep.get("sinks") or ())])
    tracker = Tracker(uri, sweep["experiment"], folder.name, folder, required=True, sinks=list(sinks))
    return tracker.close()
