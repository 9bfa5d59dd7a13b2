"""An asynchronous cloud: what two actors gain, and how fast turns are timed.

actors  rounds of an asynchronous experiment (FedAsync, H = 20 of 40 devices, M = 5, L = 5, Q = 1, the paper's network
        on Fashion-MNIST) with one actor and with two, each round directly after the other, and a bare PyTorch loop in
        one and in two processes between them. A gain is the time of one over the time of two, by medians of the rounds.
        Serial training, one actor and two must end with the same bits.
rows    rows of devices a CPU-second that the world times in asynchronous rounds (Q = 5), still and living
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import ray

from hflray.allocation import allocate_round
from hflray.clock.asynchronous import Asynchrony
from hflray.config import load_config
from hflray.cost import Schedule, Workload, round_cost
from hflray.experiment import Experiment
from hflray.fleet import sample_fleet
from hflray.seeding import stream
from hflray.training.machine import available_cpus
from hflray.world import World
from hflray.world.turns import PlannedTurns, UnderWay, timeline_of
from tests.benchmarks._report import Table
from tests.benchmarks.training import contestants, make_work

SETTINGS = (
    "data.name=fashion_mnist", "fleet.num_devices=40", "fleet.num_edges=5", "scheduling.name=fedavg",
    "scheduling.num_scheduled=20", "assignment.name=even_gain", "training.edge_iterations=1",
    "training.kernel=fused", "training.threads=1", "clock.cloud=asynchronous",
)  # fmt: skip
BACKENDS = {
    "serial": ("training.backend=serial",),
    "one actor": ("training.backend=ray", "training.num_actors=1"),
    "two actors": ("training.backend=ray", "training.num_actors=2"),
}
GOAL = 0.95  # of what two bare loops gain
SIZES = ((50, 5), (1000, 10))  # H and M
LIVING = ("world.compute_jitter.sigma=0.3", "world.dropout.rate_per_s=0.001", "world.fading.name=rayleigh",
          "clock.edge.deadline=2")  # fmt: skip


def actors(rounds: int = 6, local_iterations: int = 5) -> Table:
    """Measure what two actors gain in an asynchronous round."""
    columns = [("row", "", ""), ("one", "one, s", ".2f"), ("two", "two, s", ".2f"), ("gain", "gain", ".3f")]
    table = Table("clock/actors", f"two of each over one, medians of {rounds} rounds", columns)
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # with Ray's niceness of 15, bare loops would get more of a busy CPU
    cpus = tuple(sorted(available_cpus()))[:2]
    # Three actors live at the same time, of which at most two train.
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    settings = [*SETTINGS, f"max_rounds={rounds + 1}", f"training.local_iterations={local_iterations}"]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        work, _ = make_work(Path(folder), 20, None)
        loops = contestants(work, cpus, "fused", ["bare1", "bare2"])
        for loop in loops:
            stack.callback(loop.stop)
            loop.start()
        runs = {
            name: stack.enter_context(Experiment(load_config(None, [*settings, *backend]), cpus=len(cpus)))
            for name, backend in BACKENDS.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in (*runs, "bare1", "bare2")}
        for _ in range(rounds + 1):  # the first round of each warms up
            for name, run in runs.items():
                seconds[name].append(run.run_round().metrics()["wall/train_s"])
            for loop in loops:
                seconds[loop.word].append(loop.round(local_iterations))
        models = {name: run.global_model.tobytes() for name, run in runs.items()}
    assert len(set(models.values())) == 1, "the models differ: " + ", ".join(models)
    middle = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    for row, one, two in (("bare loops", "bare1", "bare2"), ("actors", "one actor", "two actors")):
        gain = statistics.median(a / b for a, b in zip(seconds[one][1:], seconds[two][1:], strict=True))
        table.add(row, one=middle[one], two=middle[two], gain=gain)
    ratio = table.rows[1]["gain"] / table.rows[0]["gain"]
    table.ratios["gain of actors / gain of bare loops"] = ratio
    table.notes.append(f"two actors gain {ratio:.3f} of what two bare loops gain (goal: {GOAL})")
    table.notes.append("serial training, one actor and two ended with the same bits")
    return table


def rows(rounds: int = 11) -> Table:
    """Measure how fast asynchronous rounds are timed."""
    columns = [("row", "world", ""), ("devices", "H", "d"), ("edges", "M", "d"), ("rate", "rows a CPU-second", ",.0f")]
    table = Table("clock/rows", f"timing of asynchronous rounds, Q = 5, medians of {rounds} rounds", columns)
    for (devices, edges), (name, settings) in (
        (size, world) for size in SIZES for world in {"still": (), "living": LIVING}.items()
    ):
        sizes = (f"fleet.num_devices={devices}", f"fleet.num_edges={edges}", f"scheduling.num_scheduled={devices}")
        config = load_config(None, [*sizes, *settings])
        fleet = sample_fleet(config.fleet, stream(0, "fleet"))
        work = Workload(model_bits=3.6e6, edge_iterations=5)
        schedule = Schedule(np.arange(devices), np.arange(devices) % edges)
        allocation = allocate_round(fleet, work, schedule.devices, schedule.edges)
        cost = round_cost(fleet, work, schedule.devices, schedule.edges, allocation)
        world, state = World(config, fleet), UnderWay.first(edges)
        turns = PlannedTurns(Asynchrony(edges), work, config.clock.edge)
        rates = []
        for number in range(1, rounds + 2):
            outlook = world.outlook(number, fleet)
            begin = time.process_time()
            played = turns.play(world, outlook, schedule, allocation, cost, state)
            timeline_of(played, edges, work.device_bits)
            spent_s = time.process_time() - begin
            timed = sum(np.isfinite(turn.happens.start_s).sum() for turn in played.turns if turn.round == number)
            rates.append(timed / spent_s)
            state = played.after
        table.add(name, devices=devices, edges=edges, rate=statistics.median(rates[1:]))
    return table
