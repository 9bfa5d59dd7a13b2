"""Figure 6: T, E, objective and latency of D3QN, HFEL-100, HFEL-300 and the nearest edge, over 100 fleets.

The paper's D3QN is the policy learned by Algorithm 5 as printed, on one deployment of the edges (`paper_literal`,
deployment 0). It is compared with the others on that deployment and on the same fleets; the other policies and
deployments are shown in the table and judged nowhere.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from hflray import metrics
from hflray.report.evidence import Claim, Fair, Finding, Gap, Needs, NotTested, Part, alike, fair, listed
from hflray.report.labels import DEPLOYMENT, hfel, policy, pretty
from hflray.report.runs import Run, Sweep

LEARNED = pretty("d3qn")
POLICY, ON = "paper_literal", 0  # the policy that is the paper's, and the deployment it was trained on
PAPERS = (LEARNED, hfel(100), hfel(300), "geographic")


def contestant(run: Run) -> tuple[str, str]:
    """Which of the paper's assigners a run is, and if it is none: why not."""
    assignment = run.config.assignment
    if run.settings.get(DEPLOYMENT) != ON:
        return "", f"its edges are not those of deployment {ON}"
    if run.config.allocation.coupling != "per_edge":
        return "", "one deadline for all edges"
    if assignment.name == "geographic":
        return "geographic", ""
    if assignment.name == "hfel":
        printed = assignment.transfers == 100 and assignment.start in (None, "geographic") and not assignment.options
        name = hfel(assignment.exchanges)
        return (name, "") if printed and name in PAPERS else ("", "not HFEL as the paper has it")
    if assignment.name == "d3qn":
        if assignment.policy == POLICY and not assignment.polish_ms:
            return LEARNED, ""
        return "", f"{LEARNED}, {'polished' if assignment.policy == POLICY else policy(run)}"
    return "", "not in the paper"


def papers(sweep: Sweep, needs: Needs, metric: str) -> tuple[Fair[str], list[str]]:
    """The paper's assigners on the same deployment and fleets; and the other runs, named."""
    found: dict[str, list[Run]] = {name: [] for name in needs.contestants}
    others: list[str] = []  # why each of the other runs is none of them
    for run in sweep.runs:
        name, reason = contestant(run)
        if name:
            found[name].append(run)
        else:
            others.append(reason)
    if absent := [f"{name}, literal" if name == LEARNED else name for name, runs in found.items() if not runs]:
        policies = sorted({reason for reason in others if reason.startswith(LEARNED)})
        there = f"; {listed(policies, '; ')}: not the paper's" if policies and not found[LEARNED] else ""
        raise NotTested(f"needs {listed(absent, '; ')}, on deployment {ON}{there}")
    same, unlike = alike([run for runs in found.values() for run in runs], ("assignment.",))
    groups = {name: [run for run in runs if run in same] for name, runs in found.items()}
    one = fair(groups, needs, metric)
    reasons = Counter(others)
    named = [f"{count} run{'s' if count > 1 else ''} ({reason})" for reason, count in reasons.items()]
    return one, unlike + one.dropped + named


def _means(one: Fair[str], metric: str) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Of each assigner the values on the fleets that all have, in one order, and their mean."""
    values = {name: [v for part in one.each(name, metric) for v in part] for name in one.groups}
    return values, {name: sum(found) / len(found) for name, found in values.items()}


def lowest(sweep: Sweep, needs: Needs, winner: str, metric: str, form: str) -> Finding:
    """`winner` has the lowest mean of a metric, beyond the standard error of the paired differences."""
    one, dropped = papers(sweep, needs, metric)
    values, means = _means(one, metric)
    gaps = {name: Gap.of(values[winner], values[name]) for name in means if name != winner}
    text = ", ".join(f"{name} {form.format(value)}" for name, value in sorted(means.items(), key=lambda item: item[1]))
    ties = [name for name, gap in gaps.items() if gap.tie]
    text += f" ({winner} and {listed(ties)}: a tie)" if ties else ""
    return Finding(text, [Part(gap.below, one.whole) for gap in gaps.values()], _said(one), one.runs, (), dropped)


def _said(one: Fair[str]) -> str:
    coupling = "each edge's own deadline"
    return f"deployment {ON}, {coupling}, {one.said}"


def quick(sweep: Sweep, needs: Needs) -> Finding:
    """D3QN and geographic assign faster than HFEL, by medians on one machine."""
    one, dropped = papers(sweep, needs, metrics.WALL_ASSIGN_S)
    machines = {run.history.environment.get("cpu", "") for run in one.runs}
    if len(machines) > 1:
        raise NotTested(f"needs the latencies of one machine; there are {listed(sorted(machines))}")
    values, _ = _means(one, metrics.WALL_ASSIGN_S)
    found = {name: 1e3 * sorted(times)[len(times) // 2] for name, times in values.items()}
    text = ", ".join(f"{name} {value:.2f} ms" for name, value in sorted(found.items(), key=lambda item: item[1]))
    fast, slow = (LEARNED, "geographic"), (hfel(100), hfel(300))
    parts = [Part(found[quicker] < found[slower], one.whole) for quicker in fast for slower in slow]
    return Finding(text, parts, _said(one), one.runs, (), dropped)


# The paper draws means over 100 fleets; so many of one seed and one deployment are enough.
NEEDS = Needs(seeds=1, least_steps=30, steps=100, unit="fleets", contestants=PAPERS)
CLAIMS = (
    Claim("D3QN has the lowest delay T", NEEDS,
          partial(lowest, winner=LEARNED, metric=metrics.ROUND_DELAY_S, form="{:.1f} s")),
    Claim("HFEL-300 has the lowest energy E", NEEDS,
          partial(lowest, winner=hfel(300), metric=metrics.ROUND_ENERGY_J, form="{:.1f} J")),
    Claim("D3QN has the lowest objective", NEEDS,
          partial(lowest, winner=LEARNED, metric=metrics.ROUND_OBJECTIVE, form="{:.1f} J")),
    Claim("D3QN and geographic decide quickly, HFEL slowly", NEEDS, quick,
          "our allocation is exact in microseconds, so that HFEL's search is quick as well"),
)  # fmt: skip
