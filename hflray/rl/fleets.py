"""Random fleets and what a teacher made of them: the specification, drawing and solving.

A fleet is a function of the specification and its number (``seeding.stream``); held-out fleets come from a stream of
their own. What is kept of a solved fleet is the round's problem and the teacher's assignment, independent of features:
either feature set is computed on reading, in a fraction of a millisecond.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hflray import registry
from hflray.assignment import build_assigner
from hflray.assignment.features import WIDTHS, FeatureSet, Rows, db_rows, pad_edges, paper_rows
from hflray.assignment.network import NetworkSpec
from hflray.assignment.objective import RoundProblem, all_costs, round_problem
from hflray.config import BITS_PER_KB, ExperimentConfig, FleetConfig, validate
from hflray.cost import Workload
from hflray.errors import ConfigError, DataError
from hflray.fleet import Fleet, sample_fleet
from hflray.seeding import stream
from hflray.study import MODEL_KB, sized_by_data

FORMAT = 1
TEACHER_OPTIONS = {"hfel": ("exchanges", "start"), "local_search": ("start",)}
MOST_EDGES = 127  # labels are int8
# Settings of `fleet` that came after FORMAT 1: at its default such a setting is left out of the specification, so that
# hashes, caches and what policies have recorded stay as they were.
LATER = ("power_law",)


@dataclass(frozen=True)
class FleetSpec:
    """Which fleets, and whose assignments.

    Attributes:
        fleet: ranges of everything but the counts.
        num_scheduled, num_edges: ranges of H and M, both ends included.
        delay_weight: range of λ, drawn in logarithms, J/s.
        model_kb: values of z, one of which is drawn, KB.
        base_share: probability of `base_delay_weight` and `base_model_kb` instead.
        local_iterations, edge_iterations: L and Q.
        teacher, options: an assigner's name and its options.
        seed: root of the streams.
        held_out: fleets for evaluation, from another stream than those for training.
    """

    fleet: FleetConfig = field(default_factory=FleetConfig)
    num_scheduled: tuple[int, int] = (50, 50)
    num_edges: tuple[int, int] = (5, 5)
    delay_weight: tuple[float, float] = (1.0, 1.0)
    model_kb: tuple[float, ...] = (MODEL_KB,)
    base_share: float = 0.5
    base_delay_weight: float = 1.0
    base_model_kb: float = MODEL_KB
    local_iterations: int = 5
    edge_iterations: int = 5
    teacher: str = "hfel"
    options: Mapping[str, Any] = field(default_factory=lambda: {"exchanges": 300, "start": "best_gain"})
    seed: int = 0
    held_out: bool = False

    def __post_init__(self) -> None:
        registry.check("assigner", self.teacher, "learning.teacher.name")
        for name in ("num_scheduled", "num_edges", "delay_weight"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ConfigError(f"learning.{name}: got [{low}, {high}]; 0 < low <= high is needed; correct it")
        if self.num_edges[1] > MOST_EDGES:
            raise ConfigError(f"learning.num_edges: got {self.num_edges[1]}; accepted: 1 to {MOST_EDGES}; lower it")
        fixed = self.fleet.edge_bandwidths_mhz
        if fixed is not None and self.num_edges != (len(fixed), len(fixed)):
            raise ConfigError(
                f"learning.num_edges: got {list(self.num_edges)} with {len(fixed)} fixed fleet.edge_bandwidths_mhz; "
                f"accepted: {len(fixed)}; correct it, or set the bandwidths to null"
            )

    @classmethod
    def of(cls, config: ExperimentConfig, held_out: bool = False) -> FleetSpec:
        """The specification that a configuration asks for. Raises ConfigError, see `hflray.study.sized_by_data`."""
        config = sized_by_data(config)
        learning = config.learning
        given = {"exchanges": learning.teacher.exchanges, "start": learning.teacher.start}
        wanted = TEACHER_OPTIONS.get(learning.teacher.name, ())
        scheduled, edges = config.scheduling.num_scheduled, config.fleet.num_edges
        weight, size = config.cost.delay_weight, config.cost.model_kb or MODEL_KB
        return cls(
            fleet=config.fleet,
            num_scheduled=learning.num_scheduled or (scheduled, scheduled),
            num_edges=learning.num_edges or (edges, edges),
            delay_weight=learning.delay_weight or (weight, weight),
            model_kb=learning.model_kb or (size,),
            base_share=learning.base_share,
            base_delay_weight=weight,
            base_model_kb=size,
            local_iterations=config.training.local_iterations,
            edge_iterations=config.training.edge_iterations,
            teacher=learning.teacher.name,
            options={name: given[name] for name in wanted if given[name] is not None} | learning.teacher.options,
            seed=config.seed,
            held_out=held_out,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it; what does not matter to the fleets (such as the counts of `fleet`) is left out."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("fleet", "options")}
        fleet = {
            k: v
            for k, v in self.fleet.model_dump(mode="json").items()
            if k not in ("num_devices", "num_edges", "dense")
            and not (k in LATER and v == FleetConfig.model_fields[k].default)
        }
        whole: dict[str, Any] = json.loads(json.dumps({"fleet": fleet, **values, "options": dict(self.options)}))
        return whole

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FleetSpec:
        """What `to_dict` gave. Raises ConfigError."""
        tree: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        tree["fleet"] = validate(FleetConfig, {**values["fleet"], "num_edges": values["num_edges"][1]})
        return cls(**tree)

    @property
    def hash(self) -> str:
        """Sixteen hexadecimal digits that differ between specifications."""
        text = json.dumps({"format": FORMAT, **self.to_dict()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def draw(self, index: int) -> tuple[Fleet, Workload]:
        """Fleet `index`, all of whose devices are scheduled, and the round's work.

        To draw H devices is to draw N and schedule H of them uniformly: devices are independent and alike.
        """
        rng = stream(self.seed, self._stream, index)
        h = int(rng.integers(*self.num_scheduled, endpoint=True))
        m = int(rng.integers(*self.num_edges, endpoint=True))
        base, weight = rng.random() < self.base_share, float(np.exp(rng.uniform(*np.log(self.delay_weight))))
        size = self.model_kb[int(rng.integers(len(self.model_kb)))]
        work = Workload(
            model_bits=(self.base_model_kb if base else size) * BITS_PER_KB,
            local_iterations=self.local_iterations,
            edge_iterations=self.edge_iterations,
            delay_weight=self.base_delay_weight if base else weight,
        )
        return sample_fleet(self.fleet.model_copy(update={"num_devices": h, "num_edges": m}), rng), work

    @staticmethod
    def problem(fleet: Fleet, work: Workload) -> RoundProblem:
        """The round in which all of a fleet's devices are scheduled."""
        return round_problem(fleet, work, np.arange(fleet.num_devices))[0]

    @property
    def _stream(self) -> str:
        return "assigner/held-out" if self.held_out else "assigner/fleets"

    def solve(self, index: int) -> SolvedFleet:
        """Fleet `index` with the teacher's assignment."""
        fleet, work = self.draw(index)
        devices = np.arange(fleet.num_devices)
        teacher = build_assigner(self.teacher, **self.options)
        labels = teacher.assign(fleet, work, devices, stream(self.seed, f"{self._stream}/teacher", index))
        problem = self.problem(fleet, work)
        return SolvedFleet(
            problem, labels.astype(np.int8), objective_of(problem, labels), fleet.cycles_per_sample, fleet.samples
        )


class SolvedFleet(NamedTuple):
    """A fleet's round and the teacher's answer.

    Attributes:
        problem: the round, H devices and M edges.
        labels: the teacher's edge of each device, (H,), int8.
        objective: what the teacher's assignment costs, J.
        cycles_per_sample, samples: u and D, (H,); the ``paper`` features need them apart.
    """

    problem: RoundProblem
    labels: NDArray[np.int8]
    objective: float
    cycles_per_sample: NDArray[np.float64]
    samples: NDArray[np.float64]

    def rows(self, features: FeatureSet, num_edges: int | None = None) -> Rows:
        """The feature rows (H, row), padded to `num_edges`.

        Raises:
            DataError: a feature is not finite.
        """
        problem = self.problem
        if features == "db":
            rows = db_rows(problem)
        else:  # a constant factor of the gains makes no difference to their scaled values
            rows = paper_rows(
                problem.snr.T / problem.power[:, None], self.cycles_per_sample, self.samples, problem.power
            )
        check_rows(rows)
        return rows if num_edges is None else pad_edges(rows, WIDTHS[features], num_edges)


def check_rows(rows: Rows) -> None:
    """Raise DataError if a feature is not finite: a network would pass it on to every device as NaN."""
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        where = ", ".join(str(i) for i in bad[0])
        raise DataError(f"features[{where}]: got {rows[tuple(bad[0])]}; finite numbers are needed; correct the fleet")


def objective_of(problem: RoundProblem, assignment: NDArray[Any]) -> float:
    """``Σ E_m + λ max T_m`` of an assignment (H,), J."""
    energy, delay = np.empty((2, len(problem.bandwidth)))
    return float(all_costs(problem, np.asarray(assignment, dtype=np.intp), energy, delay))


def held_out(spec: FleetSpec) -> FleetSpec:
    """The same specification with fleets that training never sees."""
    return replace(spec, held_out=True)


def network_spec(config: ExperimentConfig) -> NetworkSpec:
    """The network that a configuration asks for; M is the largest of its fleets."""
    learning = config.learning
    return NetworkSpec(
        architecture=learning.architecture,
        features=learning.features,
        num_edges=learning.num_edges[1] if learning.num_edges else config.fleet.num_edges,
        hidden=learning.hidden,
        width=learning.width,
        refinements=learning.refinements,
    )
