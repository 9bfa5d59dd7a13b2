"""The page ``tune_configs/RESULTS.md``, which compares our results with the paper's. It is generated from exports."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hflray.report.exports import named_exports, read_exhibit
from hflray.report.ranking import ranking, unranked
from hflray.report.runs import SEED, RunRecord, SweepRecord
from hflray.report.tables import summary
from hflray.reproduction.judge import drawn, verdicts, with_borrowed
from hflray.reproduction.protocol import Exhibit, exhibits, expanded
from hflray.sweep import Trial, expand, load_sweep

HEAD = """# Results beside the paper's

`{command}` writes this page; do not edit it. Every number comes from
the exports in `{source}`. All exports below one folder form one section.

This is how a claim is judged (`tune_configs/claims.yaml` holds the plans and claims, `hflray/reproduction/judge.py`
the rules):

* A plan says, before its runs, how many seeds (of assignments: fleets) there are to be, of how many rounds, on which
  split of the data. An answer is given at the planned number only. Before that, the page shows the interval and "n of
  N".
* The compared runs have the same seeds, all other settings equal, and count up to the last round that all have. The
  unit is the seed, and in brackets stands the 95 % interval of the mean effect over the seeds (Student's t). Seconds,
  joules, messages, rounds and objectives are compared as ratios, on logarithms; in parentheses stand the two
  geometric means.
* A yes needs all comparisons of a claim, a no needs one. p is adjusted for the comparisons of a claim (Bonferroni)
  and for all claims of an exhibit (Holm). A yes or a no has p of at most the plan's α, 0.05; what remains is not
  settled.
* A margin is the least difference that matters. It never makes a no: a difference whose interval lies within it is
  "yes in sign, smaller than M".
* A target is passed when the mean accuracy of five rounds is at it. "Mean curve" is the round in which the mean over
  the seeds is at it, as the paper's figures draw it. A run that misses a target would have needed more than it has
  spent; where that leaves the order of a pair open, the claim is not settled.
* Runs of another split of the data than the plan's are judged by themselves, in rows that name it ("split"). They
  were there before the plan was.
* "Modified checkout" means that the runs were made with uncommitted changes, so that nobody can repeat them exactly.

This is how schedulers are ranked by what they need to their target accuracy (`hflray/report/ranking.py`):

* The unit is the seed. Each data set and partition is ranked by itself. The assigners of a seed share its fleet and
  data, so that the mean over them is one value: of the logarithms of the ratios, on the assigners that both contestants
  have.
* Of rounds, a run that misses its target has the worst rank, and so has the mean over assigners of which one misses it
  more often than the reference does. In seconds, joules and E + λT it is censored at what it
  has spent: it would have needed more. A ratio to it is then a bound, the mean over assigners is taken of the bounds,
  and the median over seeds is printed as "≥", "≤" or a range where censored values decide it. A pair whose order is
  uncertain, because the smaller value is the censored one, scores 0; "2 uncertain" counts such seeds. "Reached" is an
  endpoint of its own.
* A rank is 1 plus the number of contestants that need less, where a tie or an uncertain order counts a half, as the
  mean over seeds. Beside it stand the median ratio to IKC's value on the same seed and the p-value of Wilcoxon's
  signed-rank test. The test is exact: zeros are ranked and then leave (Pratt), ties share their mean rank, and all
  patterns of signs are counted. Holm's method adjusts it for the opponents in one partition and endpoint with 6 seeds
  or more. "5 seeds cannot give p < 0.05" stands where even the least p-value, 2 / 2ⁿ of n seeds times the number of
  opponents, is no smaller.

In the tables, ± precedes the standard deviation over seeds (of assigners: over deployments of the edges), and "…" marks
a row with a run that has not ended. Latencies were measured on the machine as busy as it was. To continue or to repeat
the runs of a section, run its command (`--resume NAME` continues a sweep that was stopped), then
`python -m hflray.report SWEEP --export {source}`, then the command above.
"""


def _shipped_trials(shown: Exhibit, configs: Path) -> list[Trial]:
    """Return the trials of the exhibit's sweep file; none if the file does not exist."""
    path = configs / f"{shown.config}.yaml"
    return expand(load_sweep(path)) if path.exists() else []


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# Settings that cannot change a result.
NEUTRAL_KEYS = (
    "data.root", "tracking.", "checkpoint.", "training.kernel", "training.threads", "training.device",
    "training.backend", "training.num_actors", "training.devices_per_actor", "learning.cache",
)  # fmt: skip


def _differences(runs: Sequence[RunRecord], shipped: Sequence[Mapping[str, str]], swept: Sequence[str]) -> list[str]:
    """Return the settings but the seed in which runs differ from the nearest of the shipped trials, and the counts."""
    if not shipped:
        return []
    nearest: dict[tuple[str | None, ...], Mapping[str, str]] = {}
    counts: dict[str, int] = {}
    for run in runs:
        settings = _result_settings(run.settings)
        values = tuple(settings.get(key) for key in swept)
        if values not in nearest:
            nearest[values] = _nearest(settings, shipped, swept)
        for key, value in _differing(settings, nearest[values]):
            if key != SEED:
                counts[f"{key}={value}"] = counts.get(f"{key}={value}", 0) + 1
    return [
        f"`{text}`{f' ({count} of {len(runs)} runs)' if count < len(runs) else ''}" for text, count in counts.items()
    ]


def _swept(trials: Sequence[Trial]) -> tuple[list[dict[str, str]], list[str]]:
    """Return the trials' settings that can change a result, and the keys in which these trials differ.

    A setting that all trials have alike is as far from each of them, so that the others decide which trial is nearest.
    """
    shipped = [_result_settings(RunRecord.settings_of(trial.config)) for trial in trials]
    return shipped, [key for key in dict.fromkeys(key for each in shipped for key in each) if _varies(key, shipped)]


def _count(runs: Sequence[RunRecord], shipped: Sequence[Mapping[str, str]], swept: Sequence[str]) -> str:
    """Return how many of the shipped trials have a run, and how many runs are of other seeds or of no such trial."""
    seeds = {settings[SEED] for settings in shipped}
    own = [settings for run in runs if (settings := _result_settings(run.settings))[SEED] in seeds]
    planned = {tuple(settings.get(key) for key in swept) for settings in shipped}
    covered = planned & {tuple(settings.get(key) for key in swept) for settings in own}
    unplanned = {"with other seeds": len(runs) - len(own), "with other settings": len(own) - len(covered)}
    texts = [f"{count} {name}" for name, count in unplanned.items() if count]
    return " and ".join([f"{len(covered)} of {len(shipped)} runs", *texts])


def _result_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that can change a result, as text."""
    return {key: str(value) for key, value in settings.items() if not key.startswith(NEUTRAL_KEYS)}


def _varies(key: str, trials: Sequence[Mapping[str, str]]) -> bool:
    return len({trial.get(key) for trial in trials}) > 1


def _nearest(
    settings: Mapping[str, str], trials: Sequence[Mapping[str, str]], keys: Sequence[str]
) -> Mapping[str, str]:
    """Return the first of the trials that differ from `settings` in the fewest of `keys`."""
    own = {key: settings[key] for key in keys if key in settings}
    return min(trials, key=lambda trial: len(_differing(own, trial)))


def _differing(settings: Mapping[str, str], trial: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(key, value) for key, value in settings.items() if trial.get(key, value) != value]


def _span(values: Sequence[int], unit: str) -> str:
    return f"{min(values):,} {unit}" if len(set(values)) == 1 else f"{min(values):,} to {max(values):,} {unit}"


def _describe_part(part: str, runs: Sequence[RunRecord], about: str) -> str:
    """Return the machine, the date, the commit and the duration of a part of the runs, as a line of markdown."""
    spans = [(run.history.started_ms, run.history.ended_ms) for run in runs]
    wall_s = (max(end for _, end in spans) - min(start for start, _ in spans)) / 1000
    machines = sorted({run.machine for run in runs})
    commits = sorted({run.commit for run in runs})
    modified = ", a modified checkout with uncommitted changes" if any(run.modified for run in runs) else ""
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    return (
        f"* {f'`{part}`: {count} ' if part else ''}on {', '.join(machines)}, in {_duration(wall_s)} from the "
        f"first start to the last round, {time.strftime('%Y-%m-%d', time.gmtime(min(spans)[0] / 1000))}; "
        f"commit {', '.join(commits)}{modified}{f'; {about}' if about else ''}"
    )


def provenance(sweep: SweepRecord, shown: Exhibit, configs: Path) -> list[str]:
    """Return lines of markdown about the runs: their number, length, seeds, machines, commits, durations and notes."""
    ended = [run for run in sweep.runs if run.ended]
    running = [int(run.rounds["round"].max()) for run in sweep.runs if not run.ended]
    seeds = sorted({run.seed for run in sweep.runs})
    shipped, swept = _swept(_shipped_trials(shown, configs))
    unit = sweep.shown.counted
    lengths = f" ({_span([int(run.rounds['round'].max()) for run in ended], unit)})" if unit and ended else ""
    lines = [
        f"* {_count(sweep.runs, shipped, swept)}, {len(ended)} of them ended{lengths}"
        + (f", {len(running)} not, {_span(running, unit)} so far" if unit and running else "")
        + f"; seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    ]
    parts: dict[str, list[RunRecord]] = {}
    for run in sweep.runs:
        parts.setdefault(run.part, []).append(run)
    lines += [_describe_part(part, runs, sweep.parts.get(part, "")) for part, runs in sorted(parts.items())]
    differences = _differences(sweep.runs, shipped, swept)
    if differences:
        lines.append("* unlike the shipped configuration: " + ", ".join(differences))
    return lines + [f"* {note}" for note in sweep.notes]


def section(name: str, shown: Exhibit, sweep: SweepRecord | None, configs: Path) -> str:
    """Return the section of one figure or table."""
    lines = [
        f"## {shown.label}: {shown.shows}", "",
        "```bash", f"python -m hflray.tune tune_configs/{shown.config}.yaml",
        f"python -m hflray.report {shown.config} --figure {name}", "```", "",
    ]  # fmt: skip
    if sweep is None:
        lines.append("Not run yet.")
        if shown.claims:
            lines += ["", f"{shown.claimant} claims: {'; '.join(claim.text for claim, _ in expanded(shown))}."]
        return "\n".join(lines) + "\n"
    lines += provenance(sweep, shown, configs)
    if shown.summarised:
        lines += ["", summary(drawn(shown, sweep)).markdown().rstrip()]
    if (ranked := ranking(sweep, shown.reference)) is not None:
        lines += ["", ranked.markdown().rstrip()]
        lines += [line for sentence in unranked(sweep) for line in ("", f"* {sentence}")]
    if shown.claims:
        lines += ["", _answers(shown, sweep)]
    return "\n".join(lines) + "\n"


def answers(shown: Exhibit, sweep: SweepRecord | None) -> str:
    """Return the answers to an exhibit's claims as a table of markdown, below its heading."""
    lines = [f"### {shown.label}: {shown.shows}", ""]
    if sweep is None:
        return "\n".join([*lines, f"Not run: {len(list(expanded(shown)))} claims have too few runs.", ""])
    return "\n".join([*lines, _answers(shown, sweep), ""])


def _answers(shown: Exhibit, sweep: SweepRecord) -> str:
    return verdicts(shown, sweep).markdown().rstrip()


def render(sweeps: Mapping[str, SweepRecord], configs: Path, source: str) -> str:
    """Return the whole page.

    Args:
        sweeps: the exports by the name of their sweep file.
        configs: the folder of the shipped sweep files.
        source: the folder of the exports, as the page names it.
    """
    command = f"python -m hflray.report results --from {source}"
    parts = [HEAD.format(command=command, source=source)]
    for name, shown in exhibits().items():
        parts.append(section(name, shown, sweeps.get(shown.config), configs))
    return "\n".join(parts)


def read_all(folder: Path) -> dict[str, SweepRecord]:
    """Return the exports below a folder by the name of their sweep, with the runs that an exhibit borrows.

    Raises:
        ConfigError: the folder holds no export.
    """
    sweeps = {sweep.name: sweep for sweep in map(read_exhibit, named_exports(folder))}
    return with_borrowed(sweeps, list(exhibits().values()))
