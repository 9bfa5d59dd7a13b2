"""What a living world adds to a round, by its parts, in CPU time.

A round's world is what decisions see (`World.outlook`), what then happens to the plan (`World.happens`), the world
afterwards (`World.after`) and its metrics. Plans are not measured: a uniform draw of H = 50 devices, the nearest edge
and the fast allocation, with M = 5, Q = 5 and Fashion-MNIST's z. The clock advances by each round's delay, so that what
moves between rounds moves for so long. A round is computed five times, which changes nothing, and its least CPU time is
taken, because other programs slow some of them; a number is the median over the rounds after the first five.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml

from hflray.allocation import allocate_round
from hflray.config import load_config
from hflray.cost import Schedule, Workload, round_cost
from hflray.fleet import sample_fleet
from hflray.world import World
from tests.benchmarks._bare import yardstick_s
from tests.benchmarks._report import Table

MODEL_BITS = 447.9 * 1024 * 8
WARM_UP = 5  # rounds
Result = TypeVar("Result")
ROWS: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("world.yaml").read_text(encoding="utf-8"))


def least(call: Callable[[], Result]) -> tuple[Result, float]:
    """Return what a call returns, and the least CPU time of five such calls, s."""
    times_s = []
    for _ in range(5):
        begin = time.process_time()
        result = call()
        times_s.append(time.process_time() - begin)
    return result, min(times_s)


def measured(overrides: Sequence[str], num_devices: int, rounds: int) -> tuple[float, float]:
    """Return the CPU time of a round's world, s, and the simulated delay of a round, s: medians over rounds."""
    config = load_config(None, [f"fleet.num_devices={num_devices}", "world.wait_s=60", *overrides])
    rng = np.random.default_rng(1)
    fleet, rule = sample_fleet(config.fleet, rng), config.clock.edge
    work, world = Workload(MODEL_BITS, edge_iterations=5), World(config, fleet)
    cpu_s, delay_s = list[float](), list[float]()
    for index in range(1, rounds + 1):
        outlook, seen_s = least(lambda at=index, now=world: now.outlook(at, fleet))
        if outlook.is_empty:
            world = world.after(config.world.wait_s, None)
            continue
        there, up = np.flatnonzero(outlook.available), np.flatnonzero(outlook.edges_up)
        devices = np.sort(rng.choice(there, min(50, len(there)), replace=False))
        edges = up[outlook.fleet.take_edges(up).nearest_edges(devices)[:, 0]]
        allocation = allocate_round(outlook.fleet, work, devices, edges)
        planned = round_cost(outlook.fleet, work, devices, edges, allocation)
        plan = outlook, work, Schedule(devices, edges), allocation, planned, rule

        def happen(now: World = world, plan: Any = plan) -> World:
            happens = now.happens(*plan)
            later = now.after(happens.delay_s, happens)
            now.metrics(plan[0], happens)
            return later

        later, happened_s = least(happen)
        if index > WARM_UP:
            cpu_s.append(seen_s + happened_s)
            delay_s.append(later.clock_s - world.clock_s)
        world = later
    return statistics.median(cpu_s), statistics.median(delay_s)


def table(num_devices: int, rounds: int) -> Table:
    """Measure the world with each part alone, and with every kind of part."""
    columns = [("row", "part", ""), ("cpu", "CPU time, ms", ".2f"), ("delay", "delay of a round, s", ".0f")]
    title = f"a round's world at N = {num_devices:,}, one thread, CPU time, medians over {rounds - WARM_UP} rounds"
    result = Table(f"world/N = {num_devices}", title, columns)
    for name, overrides in ROWS.items():
        loop_s = yardstick_s(0.1, time.process_time)
        cpu_s, delay_s = measured(overrides, num_devices, rounds)
        result.ratios[f"{name}, a bare loop over a round's world"] = loop_s / cpu_s
        result.add(name, cpu=1e3 * cpu_s, delay=delay_s)
    return result


def tables(devices: Sequence[int] = (100,), rounds: int = 40) -> Iterator[Table]:
    """Measure fleets of so many devices each."""
    for num_devices in devices:
        yield table(num_devices, rounds)
