"""Our results beside the paper's: ``tune_configs/RESULTS.md``, written from exports, never by hand."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hflray.errors import ConfigError
from hflray.report import choices_text
from hflray.report.choices import Study
from hflray.report.paper import EXHIBITS, Exhibit, verdicts
from hflray.report.runs import Run, Sweep, exports, read_export
from hflray.report.tables import summary, to_markdown
from hflray.sweep import expand, load_sweep

HEAD = """# Results beside the paper's

Written by `{command}`; do not edit. Every number is from the
exports in `{source}`. "So far": an answer from a part of the runs, which more of them may change. Latencies are
of the machine as busy as it was. To continue or repeat: the command of each section
(`--resume NAME` goes on with a sweep that was stopped), then `python -m hflray.report SWEEP --export {source}`,
then the command above.
"""


def wanted(shown: Exhibit, configs: Path) -> int:
    """How many runs the whole configuration has; 0 if it is not there."""
    path = configs / f"{shown.config}.yaml"
    return len(expand(load_sweep(path))) if path.exists() else 0


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _unlike(runs: Sequence[Run], shown: Exhibit, configs: Path) -> list[str]:
    """Settings that no trial of the shipped configuration has: the runs are of a variant then."""
    known: dict[str, set[str]] = {}
    for trial in expand(load_sweep(configs / f"{shown.config}.yaml")):
        for key, value in Run.settings_of(trial.config).items():
            known.setdefault(key, set()).add(repr(value))
    quiet = ("data.root", "tracking.", "checkpoint.", "training.kernel", "training.threads", "training.device",
             "training.backend", "training.num_actors", "training.devices_per_actor", "learning.")  # fmt: skip
    found = {
        f"{key}={value}"
        for run in runs
        for key, value in run.settings.items()
        if not key.startswith(quiet) and key in known and repr(value) not in known[key]
    }
    return sorted(found)


def what_ran(sweep: Sweep, shown: Exhibit, configs: Path) -> list[str]:
    """Which runs there are, how far they came, on what, and how long it took: lines of markdown."""
    count = wanted(shown, configs)
    ended = sum(run.ended for run in sweep.runs)
    seeds = sorted({run.seed for run in sweep.runs})
    rounds = [int(run.rounds["round"].max()) for run in sweep.runs]
    span = f"{rounds[0]}" if len(set(rounds)) == 1 else f"{min(rounds)} to {max(rounds)}"
    spans = [(run.history.started_ms, run.history.ended_ms) for run in sweep.runs]
    wall_s = (max(end for _, end in spans) - min(start for start, _ in spans)) / 1000
    machines = sorted({run.history.environment.get("cpu", "an unknown machine") for run in sweep.runs})
    commits = sorted({run.commit for run in sweep.runs})
    what = {"assignment": "fleets", "experiment": "rounds"}.get(sweep.task)
    lines = [
        f"* {len(sweep.runs)} of {count} runs, {ended} of them ended; seeds {', '.join(map(str, seeds))}"
        + (f"; {span} {what} each" if what else ""),
        f"* on {', '.join(machines)}, in {_minutes(wall_s)} from the first start to the last round, "
        f"{time.strftime('%Y-%m-%d', time.gmtime(min(start for start, _ in spans) / 1000))}; "
        f"commit {', '.join(commits)}",
    ]
    unlike = _unlike(sweep.runs, shown, configs)
    if unlike:
        lines.append("* unlike the shipped configuration: " + ", ".join(f"`{text}`" for text in unlike))
    return lines + [f"* {note}" for note in sweep.notes]


def section(name: str, shown: Exhibit, sweep: Sweep | None, configs: Path) -> str:
    """The section of one figure or table."""
    lines = [
        f"## {shown.label}: {shown.shows}", "",
        "```bash", f"python -m hflray.tune tune_configs/{shown.config}.yaml",
        f"python -m hflray.report {shown.config} --figure {name}", "```", "",
    ]  # fmt: skip
    if sweep is None:
        lines.append("Not run yet.")
        if shown.claims:
            lines += ["", "The paper claims: " + "; ".join(claim.text for claim in shown.claims) + "."]
        return "\n".join(lines) + "\n"
    lines += [*what_ran(sweep, shown, configs), "", to_markdown(summary(sweep)).rstrip()]
    if shown.claims:
        lines += ["", to_markdown(verdicts(shown, sweep, wanted(shown, configs))).rstrip().replace("--:", "---")]
    return "\n".join(lines) + "\n"


def render(sweeps: Mapping[str, Sweep], configs: Path, source: str, study: Study | None = None) -> str:
    """The whole page.

    Args:
        sweeps: exports by the name of their sweep file.
        configs: the folder of the shipped sweep files.
        source: where the exports are, as the page calls it.
        study: Table II's choices, shown after Table II.
    """
    command = f"python -m hflray.report results --from {source}"
    parts = [HEAD.format(command=command, source=source)]
    for name, shown in EXHIBITS.items():
        parts.append(section(name, shown, sweeps.get(shown.config), configs))
        if name == "table2" and study is not None:
            parts.append(choices_text.section(study, source))
    return "\n".join(parts)


def read_all(folder: Path) -> dict[str, Sweep]:
    """The exports below a folder by their sweep's name. Raises ConfigError: there is none."""
    found = {sweep.name: sweep for sweep in map(read_export, exports(folder))}
    if not found:
        raise ConfigError(
            f"--from {folder}: holds no export; write one with python -m hflray.report SWEEP --export {folder}"
        )
    return found
