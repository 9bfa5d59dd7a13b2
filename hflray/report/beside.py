"""Our results beside the paper's: ``tune_configs/RESULTS.md``, written from exports, never by hand."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hflray.errors import ConfigError
from hflray.report import choices_text
from hflray.report.choices import Study
from hflray.report.exports import exports, read_exhibit
from hflray.report.paper import EXHIBITS, Exhibit, verdicts
from hflray.report.runs import Run, Sweep
from hflray.report.tables import against, summary, to_markdown
from hflray.sweep import expand, load_sweep

HEAD = """# Results beside the paper's

Written by `{command}`; do not edit. Every number is from the
exports in `{source}`; several exports below one folder are one section.

How a claim of the paper is judged (`hflray/report/evidence.py`, and each claim's least and whole evidence in
`hflray/report/claims/`):

* "yes" and "no" rest on all that the claim needs: mostly five seeds, every H, and runs to their last round. "So far" is
  an answer from a part of that, which more runs may change. "Not tested": there is less than could settle it.
* Contestants are compared with the same seeds, up to the last round (fleet, step) that all have, and with all other
  settings equal; what was not used is named. After ± is the standard error of the paired differences; a difference
  within it is a tie. A tie never agrees with a claim, and neither does a contestant that is absent.
* "Modified checkout": the runs were made with changes that are in no commit, so that nobody can repeat them exactly.

In the tables, ± is the standard deviation over seeds (of assigners: over deployments of the edges); "…": a run has not
ended. Latencies are of the machine as busy as it was. To continue or repeat: the command of each section (`--resume
NAME` goes on with a sweep that was stopped), then `python -m hflray.report SWEEP --export {source}`, then the command
above.
"""


def wanted(shown: Exhibit, configs: Path) -> int:
    """How many runs the whole configuration has; 0 if it is not there."""
    path = configs / f"{shown.config}.yaml"
    return len(expand(load_sweep(path))) if path.exists() else 0


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


NO_RESULT = (
    "data.root", "tracking.", "checkpoint.", "training.kernel", "training.threads", "training.device",
    "training.backend", "training.num_actors", "training.devices_per_actor", "learning.cache",
)  # fmt: skip


def _unlike(runs: Sequence[Run], shown: Exhibit, configs: Path) -> list[str]:
    """Where each run differs from the trial of the shipped configuration that is nearest to it, and how many do."""
    trials = [_telling(Run.settings_of(trial.config)) for trial in expand(load_sweep(configs / f"{shown.config}.yaml"))]
    found: dict[str, int] = {}
    for run in runs:
        mine = _telling(run.settings)
        for key, value in min((_apart(mine, trial) for trial in trials), key=len):
            found[f"{key}={value}"] = found.get(f"{key}={value}", 0) + 1
    return [
        f"`{text}`{f' ({count} of {len(runs)} runs)' if count < len(runs) else ''}" for text, count in found.items()
    ]


def _telling(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings that can change a result, as text."""
    return {key: str(value) for key, value in settings.items() if not key.startswith(NO_RESULT)}


def _apart(mine: Mapping[str, str], trial: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(key, value) for key, value in mine.items() if trial.get(key, value) != value]


def _span(values: Sequence[int], what: str) -> str:
    return f"{min(values):,} {what}" if len(set(values)) == 1 else f"{min(values):,} to {max(values):,} {what}"


def _part(part: str, runs: Sequence[Run], about: str) -> str:
    """Where, when, on which commit a part of the runs was made, and how long it took."""
    spans = [(run.history.started_ms, run.history.ended_ms) for run in runs]
    wall_s = (max(end for _, end in spans) - min(start for start, _ in spans)) / 1000
    machines = sorted({run.history.environment.get("cpu", "an unknown machine") for run in runs})
    commits = sorted({run.commit for run in runs})
    modified = ", a modified checkout: with changes that are in no commit" if any(run.modified for run in runs) else ""
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    return (
        f"* {f'`{part}`: {count} ' if part else ''}on {', '.join(machines)}, in {_minutes(wall_s)} from the "
        f"first start to the last round, {time.strftime('%Y-%m-%d', time.gmtime(min(spans)[0] / 1000))}; "
        f"commit {', '.join(commits)}{modified}{f'; {about}' if about else ''}"
    )


def what_ran(sweep: Sweep, shown: Exhibit, configs: Path) -> list[str]:
    """Which runs there are, how far they came, on what, and how long it took: lines of markdown."""
    ended = [run for run in sweep.runs if run.ended]
    going = [int(run.rounds["round"].max()) for run in sweep.runs if not run.ended]
    seeds = sorted({run.seed for run in sweep.runs})
    what = sweep.shown.counted
    far = f" ({_span([int(run.rounds['round'].max()) for run in ended], what)})" if what and ended else ""
    lines = [
        f"* {len(sweep.runs)} of {wanted(shown, configs)} runs, {len(ended)} of them ended{far}"
        + (f", {len(going)} not, {_span(going, what)} so far" if what and going else "")
        + f"; seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    ]
    parts: dict[str, list[Run]] = {}
    for run in sweep.runs:
        parts.setdefault(run.part, []).append(run)
    lines += [_part(part, runs, sweep.parts.get(part, "")) for part, runs in sorted(parts.items())]
    unlike = _unlike(sweep.runs, shown, configs)
    if unlike:
        lines.append("* unlike the shipped configuration: " + ", ".join(unlike))
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
    if (fleets := against(sweep)) is not None:
        lines += ["", to_markdown(fleets).rstrip()]
    if shown.claims:
        table = verdicts(shown, sweep).map(lambda cell: cell.replace("|", "\\|"))
        lines += ["", to_markdown(table).rstrip().replace("--:", "---")]
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
    found = {sweep.name: sweep for sweep in map(read_exhibit, exports(folder))}
    if not found:
        raise ConfigError(
            f"--from {folder}: holds no export; write one with python -m hflray.report SWEEP --export {folder}"
        )
    return found
