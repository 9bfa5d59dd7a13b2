"""The page ``tune_configs/RESULTS.md``, which compares our results with the paper's. It is generated from exports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hflray.report.exports import named_exports, read_exhibit
from hflray.report.ranking import ranking, unranked
from hflray.report.runs import NEUTRAL, SEED, RunRecord, SweepRecord, is_one_of
from hflray.report.tables import summary
from hflray.reproduction.judge import BORROWED, drawn, testable, verdicts, with_borrowed
from hflray.reproduction.protocol import Exhibit, exhibits, expanded
from hflray.support.pairs import LEVEL
from hflray.support.terminal.tables import TextTable
from hflray.sweep import Trial, expand, load_sweep

HEAD = Path(__file__).with_name("results_head.md")


NAMED = 6  # settings that the page names of an exhibit's runs, unless there is one more only
# Columns of a report's tables that the page leaves out; ``hflray report`` writes them.
LEFT_OUT = ("coupling", "its median", "mean", "p95", "its p95", "messages, MB", "agreement, %")
RANK = ": rank"
P_VALUE = re.compile(r"\((?:< )?(\d\.\d+)")  # of a cell such as ``0.53 (0.047, 1 uncertain)``


def _differences(runs: Sequence[RunRecord], shipped: Sequence[Mapping[str, str]], swept: Sequence[str]) -> list[str]:
    """Return the settings but the seed in which runs differ from the nearest of the shipped trials, and the counts."""
    if not shipped:
        return []
    nearest: dict[tuple[str | None, ...], Mapping[str, str]] = {}
    counts: dict[str, int] = {}
    for run in runs:
        settings = _result_settings(run.settings)
        values = tuple(settings.get(key) for key in swept)
        if values not in nearest:  # the first of the trials that differ in the fewest of the swept settings
            chosen = {key: settings[key] for key in swept if key in settings}
            nearest[values] = min(shipped, key=lambda trial: len(_differing(chosen, trial)))
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
    keys = dict.fromkeys(key for settings in shipped for key in settings)
    return shipped, [key for key in keys if len({settings.get(key) for settings in shipped}) > 1]


def _count(runs: Sequence[RunRecord], shipped: Sequence[Mapping[str, str]], swept: Sequence[str]) -> str:
    """Return how many of the shipped trials have a run, and how many runs are of other seeds or of no such trial."""
    seeds = {settings[SEED] for settings in shipped}
    of_plan = [settings for run in runs if (settings := _result_settings(run.settings))[SEED] in seeds]
    planned = {tuple(settings.get(key) for key in swept) for settings in shipped}
    covered = planned & {tuple(settings.get(key) for key in swept) for settings in of_plan}
    unplanned = {"with other seeds": len(runs) - len(of_plan), "with other settings": len(of_plan) - len(covered)}
    texts = [f"{count} {name}" for name, count in unplanned.items() if count]
    return " and ".join([f"{len(covered)} of {len(shipped)} runs", *texts])


def _result_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that can change a result, as text."""
    return {key: str(value) for key, value in settings.items() if not is_one_of(key, NEUTRAL)}


def _differing(settings: Mapping[str, str], trial: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(key, value) for key, value in settings.items() if trial.get(key, value) != value]


def _span(values: Sequence[int], unit: str) -> str:
    return f"{min(values):,} {unit}" if len(set(values)) == 1 else f"{min(values):,} to {max(values):,} {unit}"


def provenance(sweep: SweepRecord, shown: Exhibit, configs: Path) -> list[str]:
    """Return lines of markdown about the runs: their number, length, seeds and settings; exports have the rest."""
    ended = [run for run in sweep.runs if run.ended]
    running = [int(run.rounds["round"].max()) for run in sweep.runs if not run.ended]
    file = configs / f"{shown.config}.yaml"
    shipped, swept = _swept(expand(load_sweep(file)) if file.exists() else [])
    unit = sweep.shown.counted
    lengths = f" ({_span([int(run.rounds['round'].max()) for run in ended], unit)})" if unit and ended else ""
    modified = sum(run.modified for run in sweep.runs)
    lines = [
        f"* {_count(sweep.runs, shipped, swept)}, {len(ended)} of them ended{lengths}"
        + (f", {len(running)} not, {_span(running, unit)} so far" if unit and running else "")
        + f"; {_seeds({run.seed for run in sweep.runs})}"
        + (f"; {modified} of a modified checkout" if modified else "")
    ]
    differences = _differences(sweep.runs, shipped, swept)
    if borrowed := sum(sweep.parts.get(run.part) == BORROWED for run in sweep.runs):
        lines.append(f"* {borrowed} of them {BORROWED}")
    if differences:
        more = [f"{len(differences) - NAMED} more, which the exports have"] if len(differences) > NAMED + 1 else []
        named = differences[:NAMED] if more else differences
        lines.append("* unlike the shipped configuration: " + ", ".join([*named, *more]))
    return lines


def _seeds(seeds: set[int]) -> str:
    """Return the seeds as text, such as ``seeds 0 to 9`` or ``seeds 0, 2``."""
    first, last = min(seeds), max(seeds)
    if len(seeds) > 2 and len(seeds) == last - first + 1:
        return f"seeds {first} to {last}"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, sorted(seeds)))}"


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
        lines += ["", *_short(summary(drawn(shown, sweep)).without(LEFT_OUT))]
    if (ranked := ranking(sweep, shown.reference)) is not None:
        lines += _ranked(ranked)
        lines += [line for sentence in unranked(sweep) for line in ("", f"* {sentence}")]
    if shown.claims:
        lines += ["", _answers(shown, sweep)]
    return "\n".join(lines) + "\n"


def _short(table: TextTable, *stays: str) -> list[str]:
    """Return a table as markdown, below a line with the cells that all rows have alike, but for columns to be kept."""
    alike = [
        name for name in table.headings[1:] if name not in stays and len(table.rows) > 1 and len({*table[name]}) == 1
    ]
    shared_cells = "; ".join(f"{name} {table[name][0] or '–'}" for name in alike)
    return [f"In all rows: {shared_cells}.", ""] * bool(alike) + [table.without(alike).markdown().rstrip()]


def _ranked(ranking: TextTable) -> list[str]:
    """Return the ranking of each field without its ranks, and without contestants of whom no difference was found.

    A field in which so few seeds cannot give a p-value is named below, and so are these contestants.
    """
    table = ranking.without([heading for heading in ranking.headings if heading.endswith(RANK)])
    by_field: dict[str, list[dict[str, str]]] = {}
    for record in table.records:
        by_field.setdefault(record.pop("data", ""), []).append(record)
    lines, dropped = [], []
    for field, records in by_field.items():
        tested = [[float(p) for cell in list(record.values())[2:] for p in P_VALUE.findall(cell)] for record in records]
        if field and not any(tested):
            dropped += ["", f"* {field}: not shown, because {records[0]['seeds']} seeds cannot give p < 0.05."]
            continue
        alike = [record[""] for record, values in zip(records, tested, strict=True) if values and min(values) > LEVEL]
        shown = [record for record in records if record[""] not in alike]
        lines += ["", *[f"**{field}**", ""] * bool(field), *_short(TextTable.of(shown))]
        lines += ["", f"No difference was found (p > 0.05 in each column): {', '.join(alike)}."] * bool(alike)
    return lines + dropped


def answers(shown: Exhibit, sweep: SweepRecord | None) -> str:
    """Return the answers to an exhibit's claims as a table, below its heading."""
    heading = f"### {shown.label}: {shown.shows}\n\n"
    if sweep is None:
        return f"{heading}Not run: {testable(shown)} claims have too few runs.\n"
    return f"{heading}{_answers(shown, sweep)}\n"


def _answers(shown: Exhibit, sweep: SweepRecord) -> str:
    """Return the claims with an answer as a table, and below it how many have fewer runs than planned on each split."""
    records = verdicts(shown, sweep, brief=True).records
    lines, left_out = [], ["split"] if len({record.get("split") for record in records}) == 1 else []
    if left_out and "split" in records[0]:
        lines += [f"The split is `{records[0]['split']}`, and not the plan's.", ""]
    listed = [record for record in records if record["answer"]]
    left_out += [name for name in ("p", "notes") if not any(record[name] for record in listed)]
    notes_so_far: set[str] = set()
    for record in listed:
        note = record["notes"]
        record["notes"] = "as above" if note in notes_so_far else note
        notes_so_far |= {note} - {""}
    if listed:
        table = TextTable.of(listed).without(left_out)
        lines += _short(replace(table, align="l" * len(table.headings)), shown.claimant, "answer")
    if count := len({record[shown.claimant] for record in records} - {record[shown.claimant] for record in listed}):
        lines += [""] * bool(listed) + [f"{count} claims have fewer runs than planned."]
    return "\n".join(lines)


def render(sweeps: Mapping[str, SweepRecord], configs: Path, source: str) -> str:
    """Return the whole page.

    Args:
        sweeps: the exports by the name of their sweep file.
        configs: the folder of the shipped sweep files.
        source: the folder of the exports, as the page names it.
    """
    command = f"python -m hflray.report results --from {source}"
    parts = [HEAD.read_text(encoding="utf-8").format(command=command, source=source)]
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
