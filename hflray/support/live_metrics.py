"""The glossary of the metrics that Ray exports to Prometheus while a sweep runs; `dashboards/` shows them.

`hflray.tune.live` and the device actors export them. The metrics that are logged with a run are in `hflray.metrics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LiveMetric:
    """A metric that Ray exports to Prometheus while a sweep runs (`dashboards/`).

    Attributes:
        name: name that Ray gets; it spells out the base unit, as Prometheus recommends.
        kind: a counter adds up work, including work that is repeated after a loss; a gauge is the last round's value.
        labels: names of the labels; a sweep has at most trials × (edges or actors) values of them.
        description: one line for the dashboards.
    """

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    description: str

    @property
    def exported(self) -> str:
        """The name in Prometheus."""
        return f"ray_{self.name}{'_total' if self.kind == 'counter' else ''}"


_TRIAL = ("sweep", "trial")
ROUNDS = LiveMetric("hflray_rounds", "counter", _TRIAL, "rounds finished")
ACCURACY = LiveMetric("hflray_accuracy", "gauge", _TRIAL, "test accuracy of the global model, 0 to 1")
OBJECTIVE = LiveMetric("hflray_round_objective", "gauge", _TRIAL, "simulated E + lambda T of the round")
EDGE_DELAY = LiveMetric("hflray_edge_delay_seconds", "gauge", (*_TRIAL, "edge"), "simulated seconds of the edge")
EDGE_ENERGY = LiveMetric("hflray_edge_energy_joules", "gauge", (*_TRIAL, "edge"), "simulated joules of the edge")
SAMPLES = LiveMetric("hflray_samples_trained", "counter", (*_TRIAL, "actor"), "samples through local training")
RESTARTS = LiveMetric("hflray_actor_restarts", "counter", _TRIAL, "device actors replaced after one was lost")
# These are exported only for a trial whose `world` or `clock` is on, and those of batteries only where it has them.
AVAILABLE = LiveMetric("hflray_available_devices", "gauge", _TRIAL, "devices that a scheduler could choose")
EDGES_UP = LiveMetric("hflray_edges_up", "gauge", _TRIAL, "edges that worked when the round was planned")
DISCARDED = LiveMetric("hflray_discarded_ratio", "gauge", _TRIAL, "share of the uploads discarded, 0 to 1")
WASTED = LiveMetric("hflray_round_wasted_joules", "gauge", _TRIAL, "simulated joules of discarded uploads")
LOW_BATTERY = LiveMetric("hflray_low_battery_devices", "gauge", _TRIAL, "devices below their reserve of charge")
CHARGE = LiveMetric("hflray_charge_joules", "gauge", (*_TRIAL, "quantile"), "quantile of the devices' charges")
LIVE = (
    ROUNDS, ACCURACY, OBJECTIVE, EDGE_DELAY, EDGE_ENERGY, SAMPLES, RESTARTS,
    AVAILABLE, EDGES_UP, DISCARDED, WASTED, LOW_BATTERY, CHARGE,
)  # fmt: skip
