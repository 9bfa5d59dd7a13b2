"""Rounds under every clock, with every rule, aggregator, compressor and part of the world; see `tests.golden.driver`.

This file may use only what commit d5bfa282 has.
"""

from __future__ import annotations

import hashlib
from typing import Any

BASE = (
    "max_rounds=3", "data.name=digits", "model.name=logistic", "fleet.num_devices=14", "fleet.num_edges=3",
    "scheduling.name=fedavg", "scheduling.num_scheduled=8", "assignment.name=load_balanced",
    "training.local_iterations=1", "training.edge_iterations=3", "training.batch_size=16",
    "training.kernel=eager", "training.threads=1", "training.backend=serial", "data.samples_per_device=[20, 60]",
)  # fmt: skip
CLOUD, EDGE = "clock.cloud", "clock.edge"
FEDASYNC, FEDAT = f"{CLOUD}={{asynchronous: {{}}}}", f"{CLOUD}={{asynchronous: {{rule: fedat}}}}"
FEDBUFF = f"{CLOUD}={{asynchronous: {{buffer: 2, updates: 5}}}}"
SEMI = f"{CLOUD}={{semi_synchronous: {{period_s: 30}}}}"
MIXED = f"{EDGE}={{asynchronous: {{updates: 4}}}}"
CLOCKS: dict[str, tuple[str, ...]] = {
    "synchronous": (), "deadline": (f"{EDGE}={{deadline: 0.9}}",), "first": (f"{EDGE}={{first: 0.5}}",),
    "semi": (SEMI,), "fedasync": (FEDASYNC,), "fedat": (FEDAT,), "fedbuff": (FEDBUFF,),
    "mixed": (MIXED,), "mixed, fedasync": (MIXED, FEDASYNC), "mixed, fedbuff": (MIXED, FEDBUFF),
}  # fmt: skip
JITTER, DROPOUT = "world.compute_jitter.sigma=0.5", "world.dropout={rate_per_s: 0.02, noticed_after_s: 3}"
FAILURE = "world.edge_failure={mtbf_s: 60, mttr_s: 20}"
BATTERY = "world.battery={capacity_j: [3, 8], initial: [0.5, 1], harvest_w: [0.01, 0.02], idle_w: 0.001}"
FADING, COHERENT = "world.fading={name: rayleigh}", "world.fading={name: rician, options: {k_db: 6}, coherence_s: 0.5}"
KNOWN = "world.fading={name: rayleigh, known: true}"
MOVING = "world.mobility={name: random_waypoint, links: iteration}"
AWAY = "world.availability={name: markov}"
FAULTY = "world.faulty={share: 0.3, kind: sign_flip}"
WORLDS: dict[str, tuple[str, ...]] = {
    "jitter": (JITTER,), "dropout": (DROPOUT,), "failure": (FAILURE,), "battery": (BATTERY,), "fading": (FADING,),
    "coherent": (COHERENT,), "known": (KNOWN,), "moving": (MOVING,), "away": (AWAY,), "faulty": (FAULTY,),
    "everything": (JITTER, DROPOUT, FAILURE, BATTERY, FADING, MOVING, AWAY),
}  # fmt: skip
RULES = (
    "training.rule={name: fedprox}", "training.rule={name: scaffold}", "training.rule={name: feddyn}",
    "training.rule={name: fednova}", "training.rule={name: mtgc}",
)  # fmt: skip
PARTS: dict[str, tuple[str, ...]] = {
    "top_k": ("compression.device={name: top_k, options: {share: 0.1}}",),
    "qsgd": ("compression.device={name: qsgd}", "compression.edge={name: qsgd}"),
    "median": ("aggregation.edge={name: median}",), "trimmed": ("aggregation.edge={name: trimmed_mean}",),
    "fedadam": ("aggregation.cloud={name: fedadam}",), "uniform": ("aggregation.weights=uniform",),
    "private": ("privacy={clip: 1.0, noise_multiplier: 0.5}", "aggregation.weights=uniform",),
    "momentum": ("training.momentum=0.9", "training.learning_rate_decay={factor: 0.9, every: round}"),
    "oort": ("scheduling.name=oort",), "poll": ("scheduling.name=power_of_choice",),
    "once": ("assignment.once=true",), "norms": ("model.name=mlp", "training.measure_updates=true"),
}  # fmt: skip


def _spread() -> dict[str, tuple[str, ...]]:
    """Return every clock alone, each part of the world and each rule with two clocks, and each other part with one."""
    clocks = list(CLOCKS)
    rules = {rule[20:-1]: (rule,) for rule in RULES}
    cases = dict(CLOCKS)
    for number, (name, parts) in enumerate({**WORLDS, **rules}.items()):
        for clock in (clocks[number % len(clocks)], clocks[(number + 4) % len(clocks)]):
            cases[f"{clock} | {name}"] = (*CLOCKS[clock], *parts)
    for number, (name, parts) in enumerate(PARTS.items()):
        clock = clocks[number % len(clocks)]
        cases[f"{clock} | {name}"] = (*CLOCKS[clock], *parts)
    return cases


CASES = _spread()


def case(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return the rounds of an experiment, the last one of a saved state, or the error that ends it."""
    from hflray.config import load_config
    from hflray.errors import HflrayError
    from hflray.experiment import Experiment

    rounds: list[dict[str, Any]] = []
    try:
        config = load_config(None, [*BASE, *overrides])
        with Experiment(config) as run:
            records = [run.run_round(), run.run_round()]
            state = run.state_dict()
        with Experiment(config) as run:
            run.load_state_dict(state)
            records.append(run.run_round())
    except HflrayError as error:
        return {"error": type(error).__name__}  # its text may get better
    for record in records:
        values = {name: value for name, value in record.metrics().items() if not name.startswith("wall/")}
        happened = record.timeline
        rounds.append(
            {
                "hash": record.model_hash,
                "bill": values,
                "schedule": record.schedule(),
                "table": happened.table(),
                "spent_j": happened.spent_j.tolist(),
                "busy_s": happened.busy_s.tolist(),
                "device_delay_s": happened.device_delay_s.tolist(),
                "samples_trained": record.samples_trained,
            }
        )
    arrays = {name: value for name, value in state.items() if hasattr(value, "tobytes")}
    kept = {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in sorted(arrays.items())}
    return {"rounds": rounds, "kept": kept}


def rounds() -> dict[str, Any]:
    """Return the results of `CASES`."""
    return {name: case(overrides) for name, overrides in CASES.items()}
