"""Random fleets with a teacher's assignments: their specification, drawing and solving.

A fleet is a function of the specification and its number (``seeding.stream``). There are three sets of fleets, each
from a stream of its own:

* training fleets;
* held-out fleets, for learning curves and for choosing among snapshots and runs;
* reporting fleets, on which finished policies are measured and nothing is chosen.

A solved fleet consists of the round's problem and the teacher's assignment. It does not depend on the feature set:
either set is computed when the fleet is read, in a fraction of a millisecond.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hflray import registry
from hflray.assignment import assigned, build_assigner
from hflray.assignment.features import WIDTHS, FeatureSet, Rows, db_rows, pad_edges, paper_rows
from hflray.assignment.network import NetworkSpec
from hflray.assignment.objective import RoundProblem, round_problem
from hflray.assignment.state import assigned_objective
from hflray.config import BITS_PER_KB, ExperimentConfig, FleetConfig, refuse_unpinned, validate_stored
from hflray.config.system import AccessConfig, ComputeConfig, DownloadConfig
from hflray.cost import Workload
from hflray.errors import ConfigError, DataError
from hflray.experiment.study import MODEL_KB, refuse_other_uploads, sized_by_data
from hflray.fleet import Fleet, given_fleet, sample_fleet
from hflray.seeding import stream
from hflray.support.references import spoken

FORMAT = 1
TEACHER_OPTIONS = {"hfel": ("exchanges", "start"), "local_search": ("start",)}
MOST_EDGES = 127  # because labels are int8
# Settings of `fleet` that are newer than FORMAT 1. The specification leaves such a setting out at its default, so that
# hashes, caches and the specifications recorded in policies do not change.
LATER = ("deployment_seed", "power_law", "slow_share", "slow_factor", "name", "options")


def refuse_other_systems(config: ExperimentConfig) -> None:
    """Raise ConfigError if a policy would be trained with a tree, physics or uploads that its fleets do not have.

    A trained policy may be used with any tree.
    """
    cost, limits = config.cost, config.allocation.limits
    papers = AccessConfig(), ComputeConfig(), DownloadConfig()
    if limits.are_set or (cost.access, cost.compute, cost.download) != papers:
        raise ConfigError(
            "cost, allocation.limits: got another physics, a download or limits for the training of a policy, whose "
            "fleets have fdma, dvfs and none of these; accepted: the defaults; leave them out"
        )
    if config.tree.label:
        raise ConfigError(
            f"tree: got {config.tree.label} for the training of a policy, whose fleets have the cloud alone above "
            "their edges; accepted: no tree; leave it out"
        )
    refuse_other_uploads(config, "the training of a policy")


@dataclass(frozen=True)
class FleetSpec:
    """The specification of a set of random fleets and of the teacher that solves them.

    Attributes:
        fleet: ranges of all quantities except the numbers of devices and edges.
        num_scheduled, num_edges: ranges of H and M, both ends included.
        delay_weight: range of λ, J/s; its logarithm is drawn uniformly.
        model_kb: values of z to draw from, KB.
        base_share: probability that a fleet has `base_delay_weight` and `base_model_kb` instead.
        local_iterations, edge_iterations: L and Q.
        teacher, options: an assigner's name and its options.
        seed: root seed of the streams.
        held_out: draw held-out fleets instead of training fleets.
        reporting: draw reporting fleets; `held_out` is then ignored.
        base: the run's fleet if it is not drawn alone; a fleet of the set is then that of H of its devices, drawn.
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
    reporting: bool = False
    base: Fleet | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        registry.check("assigner", self.teacher, "learning.teacher.name")
        devices, edges, beside = (1, math.inf), (1, MOST_EDGES), ""
        if self.base is not None:
            n, m = self.base.num_devices, self.base.num_edges
            devices, edges = (1, n), (m, min(m, MOST_EDGES))
            beside = f" with fleet.name = {spoken(self.fleet.name)}, of {n} devices and {m} edges"
        elif (fixed := self.fleet.edge_bandwidths_mhz) is not None:
            edges, beside = (len(fixed), len(fixed)), f" with {len(fixed)} fixed fleet.edge_bandwidths_mhz"
        elif (seed := self.fleet.deployment_seed) is not None and self.num_edges[0] != self.num_edges[1]:
            edges = (self.num_edges[1], self.num_edges[1])
            beside = f" with fleet.deployment_seed = {seed}, which keeps the edges of one deployment"
        ends = (("num_scheduled", devices), ("num_edges", edges), ("delay_weight", (0, math.inf)))
        for name, (least, most) in ends:
            low, high = getattr(self, name)
            if low <= 0 or not least <= low <= high <= most:
                accepted = " to ".join(f"{end:g}" for end in dict.fromkeys((least, most)))
                raise ConfigError(
                    f"learning.{name}: got [{low}, {high}]{beside}; accepted: {accepted}, with low <= high; correct it"
                )

    @classmethod
    def of(cls, config: ExperimentConfig, held_out: bool = False) -> FleetSpec:
        """Return the specification of a configuration's fleets.

        Raises:
            ConfigError: see `hflray.experiment.study.sized_by_data` and `refuse_other_systems`; or an assignment would
                minimise another objective.
        """
        refuse_other_systems(config)
        if config.minimised != "round":
            raise ConfigError(
                f"assignment.minimise: got {config.minimised}, which null is with an asynchronous cloud, for the "
                "training of an assigner, whose teacher weighs the delay of the slowest edge; accepted: round; set it"
            )
        config = sized_by_data(config)
        learning = config.learning
        teacher_settings = {"exchanges": learning.teacher.exchanges, "start": learning.teacher.start}
        option_names = TEACHER_OPTIONS.get(learning.teacher.name, ())
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
            options={name: teacher_settings[name] for name in option_names if teacher_settings[name] is not None}
            | learning.teacher.options,
            seed=config.seed,
            held_out=held_out,
            base=given_fleet(config.fleet, config.seed),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the specification as JSON values, without the settings that do not change the fleets."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "base"}
        fleet = self.fleet.model_dump(mode="json", exclude={"num_devices", "num_edges", "dense"})
        defaults = FleetConfig().model_dump(mode="json")
        fleet = {name: value for name, value in fleet.items() if name not in LATER or value != defaults[name]}
        if not self.reporting:  # the field is newer than FORMAT 1: see LATER
            del values["reporting"]
        tree: dict[str, Any] = json.loads(json.dumps(values | {"fleet": fleet, "options": dict(self.options)}))
        return tree

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FleetSpec:
        """Rebuild a specification from the values of `to_dict`.

        Raises:
            ConfigError: a value is not accepted.
        """
        tree: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        counts = {} if values["fleet"].get("name") == "table" else {"num_edges": values["num_edges"][1]}
        source = "the fleets' specification"
        refuse_unpinned({"fleet": values["fleet"], "learning": {"teacher": {"name": tree.get("teacher")}}}, source)
        tree["fleet"] = validate_stored(FleetConfig, {**values["fleet"], **counts}, source)
        return cls(**tree, base=given_fleet(tree["fleet"], values["seed"]))

    @property
    def hash(self) -> str:
        """A hash of sixteen hexadecimal digits that identifies the specification."""
        text = json.dumps({"format": FORMAT, **self.to_dict()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def draw(self, index: int) -> tuple[Fleet, Workload]:
        """Draw fleet `index`, all of whose devices are scheduled, and the round's workload.

        Drawing H devices is equivalent to drawing N and scheduling H of them uniformly, because devices are independent
        and identically distributed.
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
        if self.base is not None:
            return self.base.take(np.sort(rng.choice(self.base.num_devices, h, replace=False))), work
        return sample_fleet(self.fleet.model_copy(update={"num_devices": h, "num_edges": m}), rng), work

    @staticmethod
    def problem(fleet: Fleet, work: Workload) -> RoundProblem:
        """Return the problem of the round in which all of a fleet's devices are scheduled."""
        return round_problem(fleet, work, np.arange(fleet.num_devices))[0]

    @property
    def _stream(self) -> str:
        if self.reporting:
            return "assigner/reporting"
        return "assigner/held-out" if self.held_out else "assigner/fleets"

    def solve(self, index: int) -> SolvedFleet:
        """Return fleet `index` with the teacher's assignment."""
        fleet, work = self.draw(index)
        devices = np.arange(fleet.num_devices)
        teacher = build_assigner(self.teacher, **self.options)
        rng = stream(self.seed, f"{self._stream}/teacher", index)
        labels = assigned(teacher, fleet, work, devices, rng, "learning.teacher.name")
        problem = self.problem(fleet, work)
        objective = assigned_objective(problem, labels)
        return SolvedFleet(problem, labels.astype(np.int8), objective, fleet.cycles_per_sample, fleet.samples)


class SolvedFleet(NamedTuple):
    """The problem of a fleet's round and the teacher's solution.

    Attributes:
        problem: the round, H devices and M edges.
        labels: the teacher's edge of each device, (H,), int8.
        objective: objective of the teacher's assignment, J.
        cycles_per_sample, samples: u and D, (H,); the ``paper`` features need them separately.
    """

    problem: RoundProblem
    labels: NDArray[np.int8]
    objective: float
    cycles_per_sample: NDArray[np.float64]
    samples: NDArray[np.float64]

    def rows(self, features: FeatureSet, num_edges: int | None = None) -> Rows:
        """Return the feature rows (H, row), padded to `num_edges`.

        Raises:
            DataError: a feature is not finite.
        """
        problem = self.problem
        if features == "db":
            rows = db_rows(problem)
        else:  # a constant factor of the gains does not change their scaled values
            gain = problem.snr.T / problem.power[:, None]
            rows = paper_rows(features, gain, self.cycles_per_sample, self.samples, problem.power)
        check_rows(rows)
        return rows if num_edges is None else pad_edges(rows, WIDTHS[features], num_edges)


def check_rows(rows: Rows) -> None:
    """Raise DataError if a feature is not finite: the network would turn it into NaN Q-values of all devices."""
    bad = np.argwhere(~np.isfinite(rows))
    if len(bad):
        index = ", ".join(str(i) for i in bad[0])
        raise DataError(f"features[{index}]: got {rows[tuple(bad[0])]}; finite numbers are needed; correct the fleet")


def held_out(spec: FleetSpec) -> FleetSpec:
    """Return the same specification for held-out fleets, which are not used for training."""
    return replace(spec, held_out=True)


def reporting(spec: FleetSpec) -> FleetSpec:
    """Return the same specification for reporting fleets, which are used neither for training nor for any choice."""
    return replace(spec, held_out=False, reporting=True)


def network_spec(config: ExperimentConfig) -> NetworkSpec:
    """Return the specification of a configuration's network, whose M is the largest of the configuration's fleets."""
    learning = config.learning
    num_edges = learning.num_edges[1] if learning.num_edges else config.fleet.num_edges
    same = ("architecture", "features", "hidden", "width", "refinements")
    return NetworkSpec(num_edges=num_edges, **{name: getattr(learning, name) for name in same})
