"""What choosing the edge with the strongest gain returns in Algorithm 5's environment, for each start of the teacher.

    python -m tests.rl.strongest_gain

A policy that imitates HFEL-300 must return more than this rule, which learns nothing. The return of a fleet is the sum
of the rewards (26): +1 for each of its 50 devices that gets the teacher's edge, and −1 for each other one. The fleets
are the 500 held-out ones of `tune_configs/fig5_readings.yaml`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hflray.assignment.state import assigned_objective
from hflray.rl.fleets import FleetSpec, SolvedFleet, held_out
from hflray.rl.solved_fleets import prepare
from hflray.support.arrays import IntArray
from hflray.sweep import expand, load_sweep

READINGS = Path(__file__).parents[2] / "tune_configs" / "fig5_readings.yaml"


def strongest(fleet: SolvedFleet) -> IntArray:
    """Return the edge with the largest signal-to-noise ratio of each device, (H,)."""
    return np.asarray(fleet.problem.snr).argmax(axis=0)


def returned(fleet: SolvedFleet) -> float:
    """Return the sum of the rewards of a fleet."""
    matches = int((strongest(fleet) == fleet.labels).sum())
    return float(2 * matches - len(fleet.labels))


def main() -> None:
    """Print a line for each start."""
    specs = {
        trial.config.learning.teacher.start: (held_out(FleetSpec.of(trial.config)), trial.config.learning)
        for trial in expand(load_sweep(READINGS))
    }
    for start, (spec, learning) in specs.items():
        fleets = prepare(spec, learning.evaluation_fleets).fleets
        returns = np.array([returned(fleet) for fleet in fleets])
        cost = np.mean([assigned_objective(fleet.problem, strongest(fleet)) for fleet in fleets])
        ratio = cost / np.mean([fleet.objective for fleet in fleets])
        agreement = (1 + returns.mean() / len(fleets[0].labels)) / 2
        print(
            f"HFEL-300 from {start}: return {returns.mean():+.1f} ± {returns.std(ddof=1):.1f} over {len(fleets)} "
            f"fleets, agreement {agreement:.1%}, {ratio:.2f} × the teacher's objective"
        )


if __name__ == "__main__":
    main()
