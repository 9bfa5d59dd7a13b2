"""Rounds of trees, physics and parts together that commit d5bfa282 did not have or `rounds` leaves out.

This file may use only what commit afbe98f7 has. No cloud that does not wait stands beside a broadcast and a living
world, because that commit did not bill the download for a device that never began.
"""

from __future__ import annotations

from rounds import (
    BATTERY,
    CLOCKS,
    DROPOUT,
    EDGE,
    FADING,
    FAILURE,
    FEDASYNC,
    FEDAT,
    FEDBUFF,
    JITTER,
    MIXED,
    SEMI,
    case,
)  # isort: skip  # fmt: skip

REGION = "tree={region: {count: 2, iterations: 2, bandwidth_mhz: 20}}"
MEDIAN = "tree={region: {count: 2, iterations: 3, aggregation: {name: median}, compression: {name: qsgd}}}"
RING, COMPLETE = "tree={gossip: {graph: ring}}", "tree={gossip: {graph: complete}}"
LIVING = (JITTER, DROPOUT, FAILURE, BATTERY)
AWAY = "world.availability={name: markov, options: {mean_on_s: 100, mean_off_s: 30}}"
MOVING = "world.mobility={name: random_waypoint, links: iteration, options: {v_min_m_per_s: 5, v_max_m_per_s: 15}}"
EVERYTHING = (*LIVING, FADING, MOVING, AWAY)
UNICAST, BROADCAST = "cost.download.name=unicast", "cost.download.name=broadcast"
QSGD, TOP_K = "compression.edge={name: qsgd}", "compression.device={name: top_k, options: {share: 0.1}}"
SCAFFOLD, OORT = "training.rule={name: scaffold}", "scheduling.name=oort"
SIX = ("fleet.num_edges=6", "fleet.num_devices=20", "scheduling.num_scheduled=12")
CASES: dict[str, tuple[str, ...]] = {
    "region": (REGION, *SIX), "region | median": (MEDIAN, *SIX), "region | everything": (REGION, *SIX, *EVERYTHING),
    "region | failure": (REGION, *SIX, FAILURE, BROADCAST), "region | qsgd": (REGION, *SIX, QSGD, TOP_K, FAILURE),
    "region | scaffold": (REGION, *SIX, SCAFFOLD, *LIVING), "region | first": (REGION, *CLOCKS["first"], OORT),
    "region | measured": (REGION, *SIX, "training.measure_updates=true", DROPOUT, "training.momentum=0.9"),
    "ring": (RING, *SIX), "ring | everything": (RING, *SIX, *EVERYTHING), "complete | failure": (COMPLETE, FAILURE),
    "ring | top_k": (RING, TOP_K, *CLOCKS["deadline"], OORT), "ring | unicast": (RING, *SIX, UNICAST, *LIVING),
    "broadcast": (BROADCAST,), "broadcast | everything": (BROADCAST, *EVERYTHING), "semi | living": (SEMI, *LIVING),
    "semi | broadcast": (SEMI, BROADCAST, QSGD, SCAFFOLD, FAILURE), "semi | unicast": (SEMI, UNICAST, OORT),
    "fedasync | unicast": (FEDASYNC, UNICAST, *LIVING), "fedbuff | broadcast": (FEDBUFF, BROADCAST),
    "fedat | tdma": (FEDAT, "cost.access.name=tdma", *LIVING), "fedasync | ofdma": (FEDASYNC, "cost.access.name=ofdma"),
    "mixed | unicast": (MIXED, UNICAST, *EVERYTHING),
    "mixed, fedat | unicast": (MIXED, FEDAT, UNICAST, *LIVING),
    "mixed, fedat | everything": (MIXED, FEDAT, *EVERYTHING),
    "mixed, fedasync | qsgd": (MIXED, FEDASYNC, QSGD, TOP_K, *EVERYTHING, OORT),
    "mixed, fedbuff | poll": (MIXED, FEDBUFF, "scheduling.name=power_of_choice", *LIVING),
    "mixed | qsgd": (MIXED, QSGD, TOP_K, FAILURE, "training.momentum=0.9", "training.measure_updates=true"),
    "mixed | one": (f"{EDGE}={{asynchronous: {{updates: 1}}}}", FEDBUFF, *LIVING),
    "fedbuff | scaffold": (FEDBUFF, SCAFFOLD, QSGD, TOP_K, *EVERYTHING, OORT), "fedat | poll": (
        FEDAT, "scheduling.name=power_of_choice", BATTERY, "training.measure_updates=true"),
    "fedasync | median": (FEDASYNC, "aggregation.edge={name: median}", *LIVING, EDGE + "={deadline: 1.1}"),
    "fedasync | one": ("clock.cloud={asynchronous: {updates: 1}}", *EVERYTHING, OORT),
}  # fmt: skip


def systems() -> dict[str, object]:
    """Return the results of `CASES`."""
    return {name: case(overrides) for name, overrides in CASES.items()}
