"""Figure 6: T, E, objective and latency of D3QN, HFEL-100, HFEL-300 and the nearest edge, over 100 fleets.

The paper does not say where HFEL's search starts, so that every claim is judged for each start of `STARTS`. D3QN is a
policy learned by Algorithm 5 on one deployment of the edges (deployment 0). The paper leaves Algorithm 5 open, and a
claim agrees if it does with a policy of one of `READINGS`, the literal reading and the one that returns most. A policy
is compared with the other assigners on that deployment and on the same fleets. The table also shows other policies and
deployments, but no claim is judged on them. What all readings' policies cost beside HFEL-300 is judged in Figure 5
(`hflray.reproduction.zhang.learning`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from hflray import metrics
from hflray.report.labels import DEPLOYMENT, POLICIES, hfel, policy, pretty
from hflray.report.readings import STARTS
from hflray.report.runs import Run, Sweep
from hflray.reproduction.evidence import (
    Claim,
    Comparison,
    Finding,
    Gap,
    Needs,
    NotTested,
    Part,
    compare_fairly,
    join_names,
    name_verdicts,
    select_alike,
)

LEARNED = pretty("d3qn")
TRAINED_ON = 0  # the deployment of the edges
READINGS = {  # of Algorithm 5, by the policy that was trained by it
    "paper_literal": "linear gains, the geographic start, a buffer of 1,000 and single transitions",
    "paper_best": "gains in dB, the best gain start, a buffer of 50,000 and three whole episodes",
}
PAPERS = (LEARNED, hfel(100), hfel(300), "geographic")


def contestant(run: Run, start: str = "geographic", learned: str = "paper_literal") -> tuple[str, str]:
    """Return the name of the paper's assigner that a run is, or an empty name with the reason why it is none.

    Args:
        run: a run of an assignment study.
        start: the assignment from which HFEL's search starts.
        learned: the policy of D3QN.
    """
    assignment = run.config.assignment
    if run.settings.get(DEPLOYMENT) != TRAINED_ON:
        return "", f"its edges are not those of deployment {TRAINED_ON}"
    if run.config.allocation.coupling != "per_edge":
        return "", "one deadline for all edges"
    if assignment.name == "geographic":
        return "geographic", ""
    if assignment.name == "hfel":
        name = hfel(assignment.exchanges)
        if assignment.transfers != 100 or assignment.options or name not in PAPERS:
            return "", "not HFEL as the paper has it"
        return (name, "") if (assignment.start or "geographic") == start else ("", "HFEL from another start")
    if assignment.name == "d3qn":
        if assignment.policy == learned and not assignment.polish_ms:
            return LEARNED, ""
        return "", f"{LEARNED}, {'polished' if assignment.policy == learned else policy(run)}"
    return "", "not in the paper"


def compare_paper_assigners(
    sweep: Sweep, needs: Needs, metric: str, start: str, learned: str
) -> tuple[Comparison[str], list[str]]:
    """Return the comparison of the paper's assigners on the same deployment and fleets, and the unused runs.

    Raises:
        NotTested: one of the assigners has no run, or too few fleets.
    """
    candidates: dict[str, list[Run]] = {name: [] for name in needs.contestants}
    reasons: list[str] = []  # why each of the other runs is no contestant
    for run in sweep.runs:
        name, reason = contestant(run, start, learned)
        if name:
            candidates[name].append(run)
        else:
            reasons.append(reason)
    if absent := [f"{name}, literal" if name == LEARNED else name for name, runs in candidates.items() if not runs]:
        policies = sorted({reason for reason in reasons if reason.startswith(LEARNED)})
        other_policies = (
            f"; {join_names(policies, '; ')}: not the paper's" if policies and not candidates[LEARNED] else ""
        )
        raise NotTested(f"needs {join_names(absent, '; ')}, on deployment {TRAINED_ON}{other_policies}")
    selected, unlike = select_alike([run for runs in candidates.values() for run in runs], ("assignment.",))
    groups = {name: [run for run in runs if run in selected] for name, runs in candidates.items()}
    comparison = compare_fairly(groups, needs, metric)
    counted = [f"{count} run{'s' if count > 1 else ''} ({reason})" for reason, count in Counter(reasons).items()]
    return comparison, unlike + comparison.dropped + counted


def _means(comparison: Comparison[str], metric: str) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return each assigner's values on the fleets that all have, in the same order, and their means."""
    values = {name: [v for part in comparison.each(name, metric) for v in part] for name in comparison.groups}
    return values, {name: sum(column) / len(column) for name, column in values.items()}


def has_lowest_mean(
    sweep: Sweep, needs: Needs, learned: str, winner: str, metric: str, form: str, start: str
) -> Finding:
    """Test whether `winner` has the lowest mean of a metric, by the 95 % interval of the paired differences."""
    comparison, dropped = compare_paper_assigners(sweep, needs, metric, start, learned)
    values, means = _means(comparison, metric)
    gaps = {name: Gap.of(values[winner], values[name]) for name in means if name != winner}
    text = ", ".join(f"{name} {form.format(value)}" for name, value in sorted(means.items(), key=lambda item: item[1]))
    text += name_verdicts(winner, gaps)
    parts = [Part.of(gap, -1, comparison.whole) for gap in gaps.values()]
    return Finding(text, parts, _describe_evidence(comparison, learned), comparison.runs, (), dropped)


def _describe_evidence(comparison: Comparison[str], learned: str) -> str:
    d3qn = f"D3QN by Algorithm 5 with {READINGS[learned]}"
    return f"{d3qn}, deployment {TRAINED_ON}, each edge's own deadline, {comparison.coverage}"


def decides_faster(sweep: Sweep, needs: Needs, learned: str, start: str) -> Finding:
    """Test whether D3QN and geographic assign faster than HFEL, by medians on one machine."""
    comparison, dropped = compare_paper_assigners(sweep, needs, metrics.WALL_ASSIGN_S, start, learned)
    machines = {run.history.environment.get("cpu", "") for run in comparison.runs}
    if len(machines) > 1:
        raise NotTested(f"needs the latencies of one machine; there are {join_names(sorted(machines))}")
    values, _ = _means(comparison, metrics.WALL_ASSIGN_S)
    medians_ms = {name: 1e3 * sorted(times)[len(times) // 2] for name, times in values.items()}
    text = ", ".join(f"{name} {value:.2f} ms" for name, value in sorted(medians_ms.items(), key=lambda item: item[1]))
    fast, slow = (LEARNED, "geographic"), (hfel(100), hfel(300))
    parts = [Part(medians_ms[quicker] < medians_ms[slower], comparison.whole) for quicker in fast for slower in slow]
    return Finding(text, parts, _describe_evidence(comparison, learned), comparison.runs, (), dropped)


def by_any_reading(sweep: Sweep, needs: Needs, test: Callable[..., Finding]) -> Finding:
    """Return the finding of a test over the readings of Algorithm 5 whose policies have runs.

    Raises:
        NotTested: no policy has enough runs.
    """
    findings, reasons = {}, []
    for learned in READINGS:
        try:
            findings[POLICIES[learned]] = test(sweep, needs, learned)
        except NotTested as reason:
            reasons.append(reason)
    if not findings:
        raise reasons[0]
    return Finding.of_choices(findings)


BY_HEART = (
    "with one update for each step, the network learns the replay buffer by heart; with 3 draws of a transition in "
    "place of 150 (rows `fewer_draws`, two seeds) it is level with HFEL-300 from the geographic start in T and "
    "objective, and behind it from the best gain"
)
# The paper draws means over 100 fleets, so that 100 fleets of one seed and one deployment are the whole evidence.
NEEDS = Needs(seeds=1, least_steps=30, steps=100, unit="fleets", contestants=PAPERS)


def _claims(start: str) -> tuple[Claim, ...]:
    where = f"HFEL from the {pretty(start)} start"

    def lowest(winner: str, metric: str, form: str) -> Callable[[Sweep, Needs], Finding]:
        return partial(
            by_any_reading, test=partial(has_lowest_mean, winner=winner, metric=metric, form=form, start=start)
        )

    return (
        Claim(f"D3QN has the lowest delay T ({where})", NEEDS, lowest(LEARNED, metrics.ROUND_DELAY_S, "{:.1f} s"),
              BY_HEART),
        Claim(f"HFEL-300 has the lowest energy E ({where})", NEEDS,
              lowest(hfel(300), metrics.ROUND_ENERGY_J, "{:.1f} J")),
        Claim(f"D3QN has the lowest objective ({where})", NEEDS, lowest(LEARNED, metrics.ROUND_OBJECTIVE, "{:.1f} J"),
              BY_HEART),
        Claim(f"D3QN and geographic decide quickly, HFEL slowly ({where})", NEEDS,
              partial(by_any_reading, test=partial(decides_faster, start=start)),
              "our allocation is exact in microseconds, so that HFEL's search is quick as well"),
    )  # fmt: skip


CLAIMS = tuple(claim for start in STARTS for claim in _claims(start))
