"""``python -m hflray.tune``: run a sweep of experiments with Ray Tune, one MLflow run per trial.

Without a configuration it runs the quickstart. A trial is an `Experiment` in a process of its own; its device actors
reserve one CPU each in the trial's placement group, the trial itself and its edges none, so that trials queue for
CPUs instead of waiting for each other for ever.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from ray.tune import Callback
from rich import box
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

from hflray import checkpoint, metrics
from hflray.assignment import configured_assigner
from hflray.compare import Outcome, closing_table, comparison_url
from hflray.config import ExperimentConfig
from hflray.data import Dataset
from hflray.errors import ConfigError, HflrayError
from hflray.experiment import Experiment, RoundRecord
from hflray.progress import SweepProgress
from hflray.scenario import Scenario
from hflray.study import run_study
from hflray.sweep import SweepFile, Trial, assigner_label, expand, load_sweep, smoke
from hflray.tracking import Tracker, default_uri
from hflray.training.hierarchy import start_ray
from hflray.training.plan import pool_size

log = logging.getLogger("hflray")
HERE = Path(__file__).parent
# Inside the package when it was installed from a wheel, beside it in a checkout.
CONFIGS = HERE / "tune_configs" if (HERE / "tune_configs").is_dir() else HERE.parent / "tune_configs"
QUICKSTART = CONFIGS / "quickstart.yaml"


def run_trial(params: dict[str, Any], trials: list[dict[str, Any]], cpus: int, task: str) -> None:
    """What Tune runs in a trial's process: the experiment numbered ``params["trial"]``."""
    from ray import tune

    config = ExperimentConfig.model_validate(trials[params["trial"]])
    if task == "assignment":
        for fleet in run_study(config):
            tune.report({"round": fleet.fleet, "metrics": fleet.metrics()})
        return
    with Experiment(config, cpus=cpus) as experiment:
        if task == "clustering":
            experiment.cluster()
            tune.report({"round": 0, "metrics": experiment.summary()})
            return
        restored = tune.get_checkpoint()
        if restored is not None:
            with restored.as_directory() as folder:
                experiment.load_state_dict(checkpoint.load(Path(folder) / "state"))
        for record in experiment:
            _report(experiment, record)


def _report(experiment: Experiment, record: RoundRecord) -> None:
    from ray import tune

    values = record.metrics() | (experiment.summary() if experiment.finished else {})
    result = {"round": record.round, "metrics": values, "model_hash": record.model_hash}
    every = experiment.config.checkpoint.every
    if not every or (record.round % every and not experiment.finished):
        tune.report(result)
        return
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder) / "state", experiment.state_dict())
        tune.report(result, checkpoint=tune.Checkpoint.from_directory(folder))


class SweepCallback(Callback):  # type: ignore[misc]  # Ray ships no types for it
    """Tune's events to the progress display, the tracker and the outcomes."""

    def __init__(self, trials: Sequence[Trial], progress: SweepProgress, tracker: Tracker, task: str) -> None:
        self._trials, self._progress, self._tracker, self._task = trials, progress, tracker, task
        self.outcomes = {index: Outcome(trial.name) for index, trial in enumerate(trials)}

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles its callbacks into the sweep's folder; screens and connections do not go there

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        index, mine = self._of(trial)
        if not self.outcomes[index].round:
            self._tracker.start(
                trial.trial_id, mine.name, mine.config, {"hflray.trial": trial.trial_id, "hflray.task": self._task}
            )
        self._progress.started(trial.trial_id, mine.name, 1 if self._task == "clustering" else mine.config.max_rounds)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        index, mine = self._of(trial)
        outcome, values = self.outcomes[index], result["metrics"]
        if result["round"] <= outcome.round and outcome.round:
            return  # a trial that failed and came back from its checkpoint repeats a round, bit for bit
        outcome.round, outcome.values = result["round"], outcome.values | values
        outcome.history.append(values)
        self._tracker.round(trial.trial_id, result["round"], values)
        if self._task == "clustering":
            text = f"ARI {values.get(metrics.CLUSTERING_ARI, 0):.3f}"
            self._progress.round(trial.trial_id, mine.name, 1, 1, text)
            return
        accuracy = f"accuracy {values[metrics.ACCURACY]:.1%}, " if metrics.ACCURACY in values else ""
        text = f"{accuracy}objective {values[metrics.ROUND_OBJECTIVE]:,.1f}"
        self._progress.round(trial.trial_id, mine.name, result["round"], mine.config.max_rounds, text)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._tracker.finish(trial.trial_id)
        self._progress.ended(trial.trial_id, self._of(trial)[1].name)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        index, mine = self._of(trial)
        reason = _reason(trial)
        self.outcomes[index].error = reason
        self._tracker.finish(trial.trial_id, error=reason)
        self._progress.ended(trial.trial_id, mine.name, error=reason)

    def _of(self, trial: Any) -> tuple[int, Trial]:
        index = int(trial.config["trial"])
        return index, self._trials[index]


def _reason(trial: Any) -> str:
    """One line that says why a trial failed; for anything but an HflrayError also where the traceback is."""
    error: Any = None
    # Tune's own accessors look in the storage, where the file arrives only after this callback.
    if trial.pickled_error_file and Path(trial.pickled_error_file).exists():
        error = pickle.loads(Path(trial.pickled_error_file).read_bytes())
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, HflrayError):
            return str(seen)
        seen = getattr(seen, "cause", None) or seen.__cause__
    lines = [line for line in str(error or "").strip().splitlines() if line.strip()]
    return f"{lines[-1] if lines else 'the trial ended without a word'} (traceback: {trial.error_file})"


def run_sweep(
    file: SweepFile, trials: Sequence[Trial], results: Path, console: Console, quiet: bool = False
) -> tuple[list[Outcome], Tracker]:
    """Run every trial; return how each ended, in order, and the tracker that knows their MLflow runs.

    Raises:
        ConfigError: fewer CPUs than a trial needs, or a tracking store that cannot be opened.
    """
    folder = results / f"{file.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    with SweepProgress(console, len(trials), quiet) as progress:
        with progress.phase("starting Ray"):
            cpus = start_ray()
        if file.tune.cpus_per_trial > cpus:
            raise ConfigError(
                f"tune.cpus_per_trial: a trial needs {file.tune.cpus_per_trial} CPUs, Ray has {cpus}; "
                f"accepted: 1 to {cpus}; lower it, or add machines"
            )
        with progress.phase("opening MLflow"):
            tracking = trials[0].config.tracking
            tracker = Tracker(tracking.uri or default_uri(results), tracking.experiment, folder.name, folder)
        callback = SweepCallback(trials, progress, tracker, file.task)
        _fit(file, trials, folder, callback)
        tracker.close()
    return [callback.outcomes[index] for index in range(len(trials))], tracker


def _fit(file: SweepFile, trials: Sequence[Trial], folder: Path, callback: SweepCallback) -> None:
    """Hand the trials to Tune. Its own reporters and log lines are off: the progress display says it all."""
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new reporter prints its banner at any verbosity
    from ray import tune
    from ray.tune.execution.placement_groups import PlacementGroupFactory

    for name in ("ray.tune", "ray.train", "ray.air", "ray"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    shares = [pool_size(t.config.training, t.config.scheduling.num_scheduled, file.tune.cpus_per_trial) for t in trials]
    alone = [t.config.training.backend == "serial" or file.task == "assignment" for t in trials]  # no actors

    def resources(params: dict[str, Any]) -> PlacementGroupFactory:
        actors, share = shares[params["trial"]]
        if alone[params["trial"]]:
            return PlacementGroupFactory([{"CPU": file.tune.cpus_per_trial}])
        return PlacementGroupFactory([{"CPU": 0}, *[{"CPU": share}] * actors])

    function = tune.with_parameters(
        run_trial,
        trials=[trial.config.model_dump(mode="json") for trial in trials],
        cpus=file.tune.cpus_per_trial,
        task=file.task,
    )
    tune.Tuner(
        tune.with_resources(function, resources),
        param_space={"trial": tune.grid_search(list(range(len(trials))))},
        tune_config=tune.TuneConfig(
            max_concurrent_trials=file.tune.max_concurrent,
            trial_dirname_creator=lambda trial: trials[trial.config["trial"]].name,
        ),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=str(folder.parent.resolve()),
            callbacks=[callback],
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=file.tune.max_failures),
        ),
    ).fit()


def _report_assignment(
    title: str, trials: Sequence[Trial], outcomes: Sequence[Outcome], folder: Path, console: Console
) -> None:
    """Table and charts of an assignment study; assigners that failed are left out of it."""
    import pandas as pd

    from hflray.report import assignment

    studies = {}
    for trial, outcome in zip(trials, outcomes, strict=True):
        if outcome.error is None:
            label = assigner_label(trial.config)
            studies[trial.name if label in studies else label] = pd.DataFrame(outcome.history)
    if studies:
        table, paths = assignment.write(title, studies, folder)
        console.print(table)
        for path in paths:
            console.print(f"  {path}", markup=False, highlight=False, soft_wrap=True)


def check_trials(trials: Sequence[Trial], task: str) -> list[str]:
    """Make every trial's data, partition, model and assigner before anything starts; return the notes for the user.

    Raises:
        ConfigError: what only the data or the assigner can tell, such as images too small for the model.
        DataError: the data are missing or malformed, or a partition cannot be made.
    """
    notes: list[str] = []
    datasets: dict[tuple[str, str | None], Dataset] = {}
    scenarios: dict[str, Scenario] = {}
    for trial in trials:
        config = trial.config
        if task == "assignment":
            configured_assigner(config)
            continue
        name = (config.data.name, config.data.root)
        key = str((config.seed, config.data, config.fleet))
        if key not in scenarios:
            scenarios = {key: Scenario.build(config, dataset=datasets.get(name))}  # one at a time: they are large
            datasets[name] = scenarios[key].dataset
            notes += [note for note in scenarios[key].notes if note not in notes]
        Experiment(config, scenario=scenarios[key])
    return notes


def _trials_table(file: SweepFile, trials: Sequence[Trial]) -> Table:
    table = Table(
        title=f"{file.name}: {len(trials)} trials of task '{file.task}'", title_justify="left", box=box.SIMPLE_HEAD
    )
    table.add_column("trial", no_wrap=True)
    for key in file.sweep:
        table.add_column(key)
    table.add_column("max_rounds", justify="right")
    for trial in trials:
        table.add_row(trial.name, *(str(trial.values[key]) for key in file.sweep), str(trial.config.max_rounds))
    return table


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def command(
    config: Annotated[Path | None, typer.Argument(help="Sweep file (YAML); without one, the quickstart runs.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated.")
    ] = None,
    smoke_run: Annotated[
        bool, typer.Option("--smoke", help="One small trial on synthetic data, a minute or less.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate everything, list the trials, run nothing.")
    ] = False,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets; else $HFLRAY_DATA, else ~/.cache/hflray.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Where results and the default MLflow database go.")] = Path(
        "hflray_results"
    ),
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only failures and the closing table.")] = False,
) -> None:
    """Run a sweep of hierarchical federated learning experiments.

    Examples:

      python -m hflray.tune
      python -m hflray.tune tune_configs/fashion_small.yaml --set scheduling.num_scheduled=50
      python -m hflray.tune tune_configs/fashion_small.yaml --dry-run
    """
    console = Console()
    logging.basicConfig(format="%(message)s", handlers=[RichHandler(console=console, show_path=False, show_time=False)])
    path = config or QUICKSTART
    file = load_sweep(path, overrides or ())
    if smoke_run:
        file = smoke(file)
    if data_root is not None:
        file = _with_data_root(file, data_root)
    trials = expand(_with_absolute_paths(file))
    notes = check_trials(trials, file.task)
    if dry_run:
        console.print(_trials_table(file, trials))
    if not quiet:
        for note in notes:
            console.print(f"note: {note}", markup=False, highlight=False)
    if dry_run:
        return

    started = time.monotonic()
    outcomes, tracker = run_sweep(file, trials, results, console, quiet)
    title = f"{file.name} ({time.monotonic() - started:.0f} s)"
    if file.task == "assignment":
        _report_assignment(title, trials, outcomes, tracker.folder, console)
    else:
        console.print(closing_table(title, outcomes))
    console.print("Compare the runs in MLflow (parameters, curves, parallel coordinates):", highlight=False)
    console.print(f"  mlflow ui --backend-store-uri {tracker.uri}", markup=False, highlight=False, soft_wrap=True)
    url = comparison_url(tracker.experiment_id, tracker.run_ids())
    console.print(f"  {url}", markup=False, highlight=False, soft_wrap=True)
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        console.print(f"{outcome.name}: failed: {outcome.error}", style="red", markup=False, highlight=False)
    if failed:
        raise typer.Exit(1)


def _with_data_root(file: SweepFile, root: Path) -> SweepFile:
    data = dict(file.experiment.get("data") or {}) | {"root": str(root)}
    return file.model_copy(update={"experiment": file.experiment | {"data": data}})


def _with_absolute_paths(file: SweepFile) -> SweepFile:
    """Paths in a sweep file are relative to where the command runs; trials run elsewhere."""

    def absolute(name: Any) -> Any:
        relative = isinstance(name, str) and name.endswith(".npz") and Path(name).exists()
        return str(Path(name).resolve()) if relative else name

    experiment, sweep = dict(file.experiment), dict(file.sweep)
    data = experiment.get("data")
    if isinstance(data, dict):
        data = data | {"name": absolute(data.get("name", "digits"))}
        if isinstance(data.get("root"), str):
            data["root"] = str(Path(data["root"]).expanduser().resolve())
        experiment["data"] = data
    axis = sweep.get("data.name")
    if axis is not None:
        kind = "grid" if axis.grid is not None else "zip"
        sweep["data.name"] = axis.model_copy(update={kind: [absolute(name) for name in getattr(axis, kind)]})
    return file.model_copy(update={"experiment": experiment, "sweep": sweep})


def main() -> None:
    """Entry point: an HflrayError is one line per mistake on stderr and exit code 2, never a traceback."""
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
    try:
        app()
    except HflrayError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    # By its real name, so that what Ray pickles from it is found again in the workers.
    from hflray.tune import main as run

    run()
