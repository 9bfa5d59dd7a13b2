"""Make the two synthetic traces of this folder: ten devices that walk around and sleep, for twenty minutes.

    python examples/traces/make.py [FOLDER]

`mobility.csv` (columns time_s,device,x_m,y_m) has a place every minute, and `availability.csv` (columns
time_s,device,available) the moments at which a device falls asleep or wakes up. They stand for no real persons.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

DEVICES, END_S, SIDE_M = 10, 1200, 1000.0


def mobility(rng: random.Random) -> list[str]:
    """Return the lines of devices that circle at walking speed around places of their own."""
    lines = ["time_s,device,x_m,y_m"]
    circles = [
        (rng.uniform(200, 800), rng.uniform(200, 800), rng.uniform(20, 180), rng.uniform(0, 6.3))
        for _ in range(DEVICES)
    ]
    for time_s in range(0, END_S + 1, 60):
        for device, (x, y, radius_m, phase) in enumerate(circles):
            angle = phase + 1.3 * time_s / radius_m  # 1.3 m/s
            lines.append(f"{time_s},{device},{x + radius_m * math.cos(angle):.1f},{y + radius_m * math.sin(angle):.1f}")
    return lines


def availability(rng: random.Random) -> list[str]:
    """Return the lines of devices that are awake for four minutes and asleep for two, on average."""
    rows = []
    for device in range(DEVICES):
        time_s, awake = 0.0, rng.random() < 2 / 3
        while time_s < END_S:
            rows.append((round(time_s, 1), device, int(awake)))
            time_s += rng.expovariate(1 / (240 if awake else 120))
            awake = not awake
    return ["time_s,device,available", *(f"{time:g},{device},{value}" for time, device, value in sorted(rows))]


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    folder = folder if folder.is_dir() else folder.parent
    for name, make in (("mobility", mobility), ("availability", availability)):
        (folder / f"{name}.csv").write_text("\n".join([*make(random.Random(7)), ""]), encoding="utf-8")
