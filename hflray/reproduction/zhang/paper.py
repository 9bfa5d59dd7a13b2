"""Our own paper (Zhang, Lam, Zhao) as one of those that are repeated, with the exhibits of `hflray.reproduction`."""

from __future__ import annotations

from dataclasses import replace

from hflray.report import figures
from hflray.reproduction.exhibits import EXHIBITS, Exhibit
from hflray.reproduction.papers import Paper
from hflray.reproduction.zhang import scheduling
from hflray.support.shipped import CONFIGS

FIGURES = ("fig3", "fig4", "table2", "fig5", "fig6", "fig7")
PAPER = Paper(
    name="zhang",
    title="Device scheduling and assignment in hierarchical federated learning for Internet of Things",
    source="Zhang, Lam, Zhao 2024",
    about="Figures 3 to 7 and Table II, with their claims",
    takes=("about 3 days on two CPUs (estimated)", "about 5 minutes"),
    full={name: EXHIBITS[name] for name in FIGURES},
    quick={
        "zhang_fig3_quick": Exhibit(
            "Figure 3 in small", "zhang_fig3_quick", "accuracy by round of IKC, VKC and FedAvg, H = 10 and 30, digits",
            {"zhang_fig3_quick": figures.curves}, scheduling.claims(20),
        ),
        "zhang_fig6_quick": replace(
            EXHIBITS["fig6"], label="Figure 6 in small", config="zhang_fig6_quick",
            shows="T, E, objective and latency of the assigners over 30 fleets",
        ),
    },
    folder=CONFIGS,
)  # fmt: skip
