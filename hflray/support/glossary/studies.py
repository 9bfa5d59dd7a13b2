"""The metrics of assignment studies, and of the training of an assigner or a scheduler."""

from __future__ import annotations

from typing import Any

from hflray.support.glossary.row import PERCENT, metric

_LEARNING: dict[str, Any] = {"table": "learning", "format": "{:.1f}"}


def assigner_ratio(reference: str) -> str:
    """Return the name of the mean objective divided by that of `reference`, such as ``teacher`` or ``lower_bound``."""
    return f"assigner/ratio/{reference}"


RIVALS = ("energy_aware", "ikc", "fedavg", "best_channel")


def agent_metric(quantity: str, player: str = "") -> str:
    """Return the name of a quantity on held-out fleets: of a scheduler of `RIVALS`, or else of the agent."""
    return f"agent/{player or 'held_out'}/{quantity}"


# The assignment study logs the gap (objective - lower bound) / objective.
ASSIGNMENT_GAP = metric(
    "assignment/gap", "Gap to the lower bound", "1", "fleet",
    meaning="(objective − lower bound) / objective: how far from the optimum the assignment is at most",
    **PERCENT, table="assignment", heading="gap to bound",
)  # fmt: skip

# The training of the assigner logs these metrics; their step is the number of devices assigned so far.
ASSIGNER_RETURN = metric(
    "assigner/return", "Return of an episode", "1", "learning",
    meaning="mean sum of rewards of the last 50 training episodes, exploration included (the paper's Figure 5)",
    **_LEARNING, short="return", heading="return of 50 devices", curve=True,
)  # fmt: skip
ASSIGNER_GREEDY_RETURN = metric(
    "assigner/greedy_return", "Return of the greedy policy", "1", "learning",
    meaning="the same sum of ±1 rewards without exploration, mean over the held-out fleets",
    **_LEARNING, short="greedy", heading="greedy return", curve=True,
)  # fmt: skip
ASSIGNER_AGREEMENT = metric(
    "assigner/agreement", "Devices that get the teacher's edge", "1", "learning",
    meaning="share of the held-out fleets' devices that get the teacher's edge",
    **PERCENT, table="learning", short="agree", heading="agreement",
)  # fmt: skip
ASSIGNER_OBJECTIVE = metric(
    "assigner/objective", "Objective of held-out fleets", "J", "learning",
    meaning="mean E + λT of the policy's assignments of the held-out fleets",
    shown="J", **_LEARNING,
)  # fmt: skip
ASSIGNER_LOSS = metric(
    "assigner/loss", "Loss", "1", "learning",
    meaning="loss of the last update",
    table="learning", format="{:.3f}", curve=True,
)  # fmt: skip
ASSIGNER_EPISODES = metric(
    "assigner/episodes", "Episodes", "1", "learning",
    meaning="fleets seen in training so far",
    table="learning", format="{:,.0f}", heading="episodes",
)  # fmt: skip
ASSIGNER_STEPS_PER_S = metric(
    "assigner/steps_per_s", "Environment steps a second", "1/s", "learning",
    meaning="environment steps per second of training since the point before",
    shown="1/s", **_LEARNING,
)  # fmt: skip
WALL_LEARN_S = metric(
    "wall/learn_s", "Learning, on this machine", "s", "learning",
    meaning="training time so far, without solving fleets and evaluating",
    shown="s", **_LEARNING,
)  # fmt: skip
for _reference, _short in (("hfel-300", "/HFEL-300"), ("local_search", "/search"), ("lower_bound", "/bound")):
    metric(
        assigner_ratio(_reference), f"Objective over that of {_reference}", "1", "reference",
        meaning=f"`assigner/objective` divided by the mean objective of {_reference} on the same fleets",
        table="learning", format="{:.3f}", short=_short,
    )  # fmt: skip

# The training of a learned scheduler logs these metrics; their step is the number of rounds played so far.
AGENT_RETURN = metric("agent/return", "Return of an episode", "1", "agent", **_LEARNING, short="return", curve=True,
    heading="return", meaning="mean return of the last 100 training episodes, exploration included")  # fmt: skip
AGENT_LOSS = metric("agent/loss", "Loss", "1", "agent", meaning="PPO's loss of the last update", table="learning")
_PLAYED = {  # label, unit and meaning; the last two compare the agent with another scheduler
    "return": ("return", "1", "mean sum of rewards of an episode"),
    "reached": ("share that reaches the target", "1", "share of the episodes that reach the target"),
    "joules": ("joules to the target", "J", "mean energy of the episodes that reach the target"),
    "seconds": ("seconds to the target", "s", "mean simulated delay of the episodes that reach the target"),
    "rounds": ("rounds to the target", "1", "mean rounds of the episodes that reach the target"),
    "ratio": ("joules over those", "1", "median over fleets of the agent's joules to the target over those"),
    "p": ("p-value", "1", "p-value of Wilcoxon's test, not adjusted, of the agent's joules against those")}  # fmt: skip
for _player in ("", *RIVALS):
    for _quantity, (_label, _unit, _words) in list(_PLAYED.items())[: 7 if _player else 5]:
        metric(
            agent_metric(_quantity, _player), f"{_label} of {_player or 'the agent'}", _unit, "agent", format="{:.3g}",
            meaning=f"{_words} of {_player or 'the greedy policy'}, on the held-out fleets", table="learning",
            heading="" if _player else _label, short=f"J/{_player}" if _quantity == "ratio" else "",
        )  # fmt: skip
