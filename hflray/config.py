"""One experiment as one validated tree: YAML and dotted overrides in, nothing else.

Files hold units as people write them (``power_dbm``, ``bandwidth_mhz``, ``model_kb``); properties named in SI units
convert them, here and nowhere else. Defaults are Table I of the paper where it has the entry, and the decisions of
the design's section 5 where the paper is silent. Unknown keys are errors that name the nearest known one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, PydanticUndefined

from hflray import registry
from hflray.errors import ConfigError, nearest

Model = TypeVar("Model", bound=BaseModel)

BITS_PER_KB = 8 * 1024  # KB is 1024 bytes throughout (design, section 4)


def dbm_to_w(dbm: float) -> float:
    """Convert a power in dBm to watts."""
    return float(10.0 ** (dbm / 10.0) * 1e-3)


def _as_range(value: object) -> object:
    """A single number stands for the range from itself to itself."""
    if isinstance(value, list | tuple) and any(isinstance(end, bool) for end in value):
        raise PydanticCustomError("bool_refused", "true and false are not numbers")
    return (value, value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Range = Annotated[tuple[float, float], BeforeValidator(_as_range)]
IntRange = Annotated[tuple[int, int], BeforeValidator(_as_range)]


def _known(kind: registry.Kind, name: str) -> str:
    try:
        return registry.check(kind, name)
    except ConfigError as error:
        raise ValueError(str(error).removeprefix(f"{kind}: ")) from error


LISTS = ("edge_bandwidths_mhz", "model_kb", "epsilon")  # settings of several values that are no ranges


class Section(BaseModel):
    """Base of every section: frozen, and closed to unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, protected_namespaces=()
    )

    @field_validator("*", mode="before")
    @classmethod
    def _as_written(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[str(info.field_name)].annotation
        # "fleet:" with every line below it commented out is an empty section.
        if value is None and isinstance(annotation, type) and issubclass(annotation, Section):
            return {}
        # pydantic would take true for 1.
        if isinstance(value, bool) and annotation not in (bool, Any) and bool not in get_args(annotation):
            raise PydanticCustomError("bool_refused", "true and false are not accepted here")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _range_is_ordered(cls, value: Any, info: ValidationInfo) -> Any:
        is_range = isinstance(value, tuple) and info.field_name not in LISTS
        if is_range and len(value) == 2 and value[0] > value[1]:
            raise ValueError(f"the range is [low, high] and {value[0]} is above {value[1]}; swap them")
        return value


class DataConfig(Section):
    """Which data, and who holds which samples."""

    name: str = Field("digits", description="digits | fashion_mnist | cifar10 | synthetic | a path ending in .npz")
    root: str | None = Field(None, description="folder of the data sets; else $HFLRAY_DATA, else ~/.cache/hflray")
    partition: str = Field("majority", description="majority | dirichlet | iid")
    majority_fraction: float = Field(0.8, gt=0, le=1, description="share of a device's samples in its majority class")
    dirichlet_alpha: float = Field(0.5, gt=0, description="concentration of the Dirichlet partition")
    samples_per_device: IntRange | None = Field(
        None, description="[low, high] of D_n; null: the paper's range for the data set, scaled down if it is too small"
    )
    preprocess: Literal["crop", "pca"] = Field("crop", description="how the mini model's 1×10×10 inputs are made")

    @field_validator("name")
    @classmethod
    def _known_dataset(cls, name: str) -> str:
        return name if name.endswith(".npz") else _known("dataset", name)

    @field_validator("partition")
    @classmethod
    def _known_partition(cls, name: str) -> str:
        return _known("partition", name)

    @field_validator("samples_per_device")
    @classmethod
    def _at_least_one(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value is not None and value[0] < 1:
            raise ValueError("accepted: 1 sample or more for each device; raise the lower end")
        return value


class FleetConfig(Section):
    """The physical system: Table I and the first paragraph of the paper's section VI."""

    num_devices: int = Field(100, ge=1, description="N")
    num_edges: int = Field(5, ge=1, description="M")
    area_km: float = Field(1.0, gt=0, description="side of the square; the cloud is in its middle")
    min_distance_m: float = Field(1.0, gt=0, description="distances are clamped to at least this")
    path_loss_db: float = Field(128.1, description="path loss at 1 km")
    path_loss_slope_db: float = Field(37.6, gt=0, description="path loss per decade of distance")
    shadowing_db: float = Field(8.0, ge=0, description="standard deviation of the shadowing, drawn once per link")
    noise_dbm_per_hz: float = Field(-174.0, description="N_0; the paper prints dBm/MHz (design, decision 5.1)")
    cycles_per_sample: Range = Field((1e4, 1e5), description="u_n")
    samples: IntRange = Field(
        (400, 700), description="D_n of a fleet without data; an experiment uses its partition's sizes"
    )
    power_dbm: Range = Field((0.0, 23.0), description="lowest and highest p_n")
    power_law: Literal["dbm", "watt"] = Field(
        "dbm",
        description="p_n between the ends of power_dbm: uniform in dBm, or uniform in watts (the paper is silent)",
    )
    edge_power_dbm: float = Field(23.0, description="p^m")
    edge_bandwidth_mhz: Range = Field((0.5, 3.0), description="B_m")
    edge_bandwidths_mhz: tuple[float, ...] | None = Field(
        None, description="B_m of every edge, for a fixed deployment; null: drawn from edge_bandwidth_mhz"
    )
    cloud_bandwidth_mhz: float = Field(10.0, gt=0, description="B, for each edge")
    max_cpu_ghz: Range = Field((2.0, 2.0), description="f_n^max")
    capacitance: float = Field(2e-28, gt=0, description="the paper's α; the energy formula has the ½")
    dense: bool | None = Field(
        None, description="keep the gain of every link, or compute it on demand; null: keep up to 5 million (N·M)"
    )

    @field_validator("cycles_per_sample", "samples", "edge_bandwidth_mhz", "max_cpu_ghz")
    @classmethod
    def _positive(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] <= 0:
            raise ValueError("accepted: a number above 0, or [low, high] with both above 0; correct it")
        return value

    @field_validator("edge_bandwidths_mhz")
    @classmethod
    def _all_positive(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is not None and not all(bandwidth > 0 for bandwidth in value):
            raise ValueError("accepted: a list of numbers above 0, one an edge; correct it")
        return value

    @model_validator(mode="after")
    def _a_bandwidth_for_each_edge(self) -> Self:
        count = None if self.edge_bandwidths_mhz is None else len(self.edge_bandwidths_mhz)
        if count is not None and count != self.num_edges:
            raise ValueError(
                f"edge_bandwidths_mhz: {count} values for num_edges = {self.num_edges}; accepted: one for each edge; "
                "correct the one or the other"
            )
        return self

    @property
    def noise_w_per_hz(self) -> float:
        """N_0 in W/Hz."""
        return dbm_to_w(self.noise_dbm_per_hz)

    @property
    def edge_power_w(self) -> float:
        """p^m in W."""
        return dbm_to_w(self.edge_power_dbm)

    @property
    def power_w_range(self) -> tuple[float, float]:
        """Lowest and highest p_n in W."""
        return dbm_to_w(self.power_dbm[0]), dbm_to_w(self.power_dbm[1])

    @property
    def edge_bandwidth_hz_range(self) -> tuple[float, float]:
        """Lowest and highest B_m in Hz."""
        return self.edge_bandwidth_mhz[0] * 1e6, self.edge_bandwidth_mhz[1] * 1e6

    @property
    def cloud_bandwidth_hz(self) -> float:
        """B in Hz."""
        return self.cloud_bandwidth_mhz * 1e6

    @property
    def max_cpu_hz_range(self) -> tuple[float, float]:
        """Lowest and highest f_n^max in Hz."""
        return self.max_cpu_ghz[0] * 1e9, self.max_cpu_ghz[1] * 1e9

    @property
    def area_m(self) -> float:
        """Side of the square in m."""
        return self.area_km * 1e3


class CostConfig(Section):
    """How seconds and joules are weighed, and how large a model is on the air."""

    delay_weight: float = Field(1.0, gt=0, description="λ in J/s; at 0 the best would be to take infinitely long")
    model_kb: float | None = Field(None, gt=0, description="z in KB of 1024 bytes; null: 32 bits per parameter")

    @property
    def model_bits(self) -> float | None:
        """z in bits, or None for 32 bits per parameter of the model."""
        return None if self.model_kb is None else self.model_kb * BITS_PER_KB


class ClusteringBillConfig(Section):
    """How Algorithm 2 is billed, which the paper does not say."""

    edge_iterations: Literal[1, "Q"] = Field(1, description="edge iterations billed: 1, or Q as in a round")
    cpu: Literal["allocated", "max"] = Field(
        "allocated", description="frequency billed: the allocated one, or f_n^max; the bandwidth stays as allocated"
    )


class SchedulingConfig(Section):
    """Which devices train."""

    name: str = Field("ikc", description="ikc | vkc | fedavg")
    num_scheduled: int = Field(50, ge=1, description="H")
    num_clusters: int | None = Field(10, ge=1, description="K; null: the data set's number of classes")
    clustering_bill: ClusteringBillConfig = ClusteringBillConfig()
    options: dict[str, Any] = Field({}, description="further arguments of a scheduler from outside")

    @field_validator("name")
    @classmethod
    def _known_scheduler(cls, name: str) -> str:
        return _known("scheduler", name)


class AssignmentConfig(Section):
    """Which edge each scheduled device talks to."""

    name: str = Field("d3qn", description="d3qn | local_search | hfel | best_gain | geographic | random")
    transfers: int = Field(100, ge=0, description="hfel: random transfers tried (the paper: 100)")
    exchanges: int = Field(300, ge=0, description="hfel: random exchanges tried (the paper: 100 or 300)")
    start: Literal["geographic", "best_gain", "random"] | None = Field(
        None, description="where hfel and local_search start; null: geographic for hfel, best_gain for local_search"
    )
    restarts: int = Field(0, ge=0, description="local_search: further searches from perturbed starts")
    budget_ms: float | None = Field(None, gt=0, description="local_search: go on for so long; depends on the machine")
    policy: str | None = Field(None, description="d3qn: a policy file; null: the shipped one, for any number of edges")
    polish_ms: Annotated[float, Field(ge=0)] | Literal["optimum"] | None = Field(
        None, description="d3qn: local search from its answer for so long; optimum: to a local optimum"
    )
    options: dict[str, Any] = Field({}, description="further arguments of the assigner")

    @field_validator("name")
    @classmethod
    def _known_assigner(cls, name: str) -> str:
        return _known("assigner", name)


class TeacherConfig(Section):
    """Whose assignments the learned assigner is taught."""

    name: str = Field("hfel", description="any assigner that needs no policy; the paper: hfel")
    exchanges: int = Field(300, ge=0, description="hfel: random exchanges tried (the paper: 300)")
    start: Literal["geographic", "best_gain", "random"] | None = Field(
        "best_gain",
        description="where hfel and local_search start. From geographic HFEL's labels are so noisy that no policy "
        "returns more than 17.6 of 50, from best_gain 27.3 (design, decision 5.8); null: the assigner's default",
    )
    options: dict[str, Any] = Field({}, description="further arguments of the assigner")

    @field_validator("name")
    @classmethod
    def _known_teacher(cls, name: str) -> str:
        return _known("assigner", name)


class LearningConfig(Section):
    """Algorithm 5: how the D3QN assigner is trained (task ``train_assigner``). "Measured" is shared/notes/rllib.md."""

    features: Literal["paper", "db"] = Field("db", description="equation (24) as written, or gains in dB and more")
    architecture: Literal["bilstm", "shared"] = Field("bilstm", description="the paper's, for one M; or for any M")
    hidden: int = Field(256, ge=1, description="units of each LSTM (the paper: 256)")
    width: int = Field(64, ge=1, description="shared: units of the link encoder")
    refinements: int = Field(2, ge=0, description="shared: rounds of load balancing")
    teacher: TeacherConfig = TeacherConfig()
    fleets: int = Field(2000, ge=1, description="fleets solved by the teacher before training; kept in the cache")
    cache: str | None = Field(None, description="folder of solved fleets; null: ~/.cache/hflray/fleets/<hash>")
    num_scheduled: IntRange | None = Field(None, description="H, or its range; null: scheduling.num_scheduled")
    num_edges: IntRange | None = Field(None, description="M, or its range (shared); null: fleet.num_edges")
    delay_weight: Range | None = Field(None, description="λ, drawn in logarithms; null: cost.delay_weight")
    model_kb: tuple[float, ...] | None = Field(None, description="values of z to draw from; null: cost.model_kb")
    base_share: float = Field(0.5, ge=0, le=1, description="fleets with cost.delay_weight and cost.model_kb anyway")
    reward: Literal["teacher", "cost"] = Field(
        "teacher", description="teacher: ±1, equation (26); cost: minus what the device adds to the objective"
    )
    minutes: float | None = Field(5.0, gt=0, description="stop after so long; the result depends on the machine")
    env_steps: int | None = Field(None, ge=1, description="stop after so many devices assigned; null: no limit")
    learning_rate: float = Field(1e-3, gt=0, description="of Adam (measured: 1e-3)")
    final_learning_rate: float = Field(1e-4, gt=0, description="where it falls to, linearly")
    learning_rate_steps: int = Field(1_000_000, ge=1, description="environment steps until it is there")
    gamma: float = Field(0.99, ge=0, le=1, description="the paper's discount; measured: hardly matters")
    double_q: bool = Field(True, description="the title's double Q; false: target (22) as printed")
    train_batch: int = Field(200, ge=1, description="transitions of an update, in whole episodes (the paper: O = 128)")
    target_update_steps: int = Field(2000, ge=1, description="J: environment steps between target network updates")
    epsilon: Annotated[tuple[float, float], BeforeValidator(_as_range)] = Field(
        (1.0, 0.05), description="exploration, from the first value to the second"
    )
    epsilon_steps: int = Field(50_000, ge=1, description="environment steps until the second")
    training_intensity: float = Field(4.0, gt=0, description="transitions replayed for each one sampled")
    learning_starts: int = Field(1000, ge=0, description="environment steps before the first update")
    td: float = Field(1.0, ge=0, description="weight of the TD loss (21)")
    ce: float = Field(0.0, ge=0, description="weight of the cross-entropy of Q against the teacher's edge, as in DQfD")
    buffer_capacity: int = Field(100_000, ge=1, description="transitions kept for replay")
    environments: int = Field(4, ge=1, description="episodes sampled at once")
    evaluate_every: int = Field(10_000, ge=1, description="environment steps between evaluations")
    evaluation_fleets: int = Field(100, ge=1, description="held-out fleets (the paper: 100)")

    @field_validator("num_scheduled", "num_edges", "delay_weight")
    @classmethod
    def _above_zero(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[0] <= 0:
            raise ValueError("accepted: a number above 0, or [low, high] with both above 0; correct it")
        return value

    @field_validator("model_kb")
    @classmethod
    def _sizes(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is not None and not (value and all(size > 0 for size in value)):
            raise ValueError("accepted: a list of numbers above 0; correct it")
        return value

    @field_validator("epsilon")
    @classmethod
    def _shares(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= share <= 1 for share in value):
            raise ValueError("accepted: [first, last], each from 0 to 1; correct it")
        return value

    @model_validator(mode="after")
    def _can_be_trained(self) -> Self:
        if self.architecture == "shared" and self.features == "paper":
            raise ValueError(
                "features: got 'paper' for the shared network, which needs each edge's bandwidth; set features: db, or "
                "architecture: bilstm"
            )
        if self.td == 0 and self.ce == 0:
            raise ValueError("td, ce: both weights are 0 and nothing would be learned; raise one of them")
        if self.minutes is None and self.env_steps is None:
            raise ValueError("minutes, env_steps: both are null and training would not end; set one of them")
        if self.architecture == "bilstm" and self.num_edges is not None and self.num_edges[0] != self.num_edges[1]:
            raise ValueError(
                f"num_edges: got {list(self.num_edges)} for the bilstm network, which is for one M; set architecture: "
                "shared, or one number"
            )
        return self


class AllocationConfig(Section):
    """Bandwidth and CPU frequency within each edge."""

    method: Literal["newton", "cvxpy"] = Field("newton", description="newton: exact and fast; cvxpy: the reference")
    coupling: Literal["per_edge", "joint"] = Field("per_edge", description="the paper's form, or one shared deadline")


class TrainingConfig(Section):
    """Algorithm 1, and the machine it runs on."""

    local_iterations: int = Field(5, ge=1, description="L")
    edge_iterations: int = Field(5, ge=1, description="Q")
    batch_size: int = Field(64, ge=1, description="mini-batch of a local iteration")
    learning_rate: float = Field(0.01, gt=0, description="β")
    local_iteration: Literal["epoch", "full_batch", "step"] = Field(
        "epoch",
        description="epoch: one pass of mini-batches; full_batch: equation (1) as written; step: one mini-batch",
    )
    precision: Literal["float32", "bf16", "tf32"] = Field(
        "float32",
        description="arithmetic of local training; bf16: of its layers, with weights and sums in float32; tf32: "
        "products of the layers with ten bits of mantissa, on GPUs",
    )
    kernel: Literal["auto", "eager", "channels_last", "compiled", "native", "batched"] = Field(
        "auto",
        description="how a gradient step is computed; changes low bits, so all backends share it. auto: the fastest "
        "measured here. native: C code made on first use, needs a C compiler. batched: all devices at once, on GPUs",
    )
    device: Literal["cpu", "cuda", "auto"] = Field("cpu", description="where devices train; auto: cuda if there is one")
    cuda_graph: bool | None = Field(
        None,
        description="GPUs: replay a step as one CUDA graph instead of issuing its kernels anew (the same bits); null: "
        "if that is faster, as timed at the start",
    )
    autotune: bool = Field(
        True,
        description="measure for kernel: auto, threads: null, num_actors: null; false: channels_last, 1, one per CPU",
    )
    backend: Literal["ray", "serial"] = Field("ray", description="ray: Device and Edge actors; serial: this process")
    devices_per_actor: int | None = Field(
        None, ge=1, description="simulated devices hosted by an actor; sets num_actors"
    )
    num_actors: int | None = Field(
        None, ge=1, description="device actors; null: as many as measured to be of use on the trial's CPUs or GPUs"
    )
    threads: int | None = Field(
        None,
        ge=1,
        description="torch threads of each actor; changes low bits, so all backends share it; null: measured",
    )

    @model_validator(mode="after")
    def _for_gpus_only(self) -> Self:
        for name, value in (("precision", "tf32"), ("cuda_graph", True)):
            if self.device == "cpu" and getattr(self, name) == value:
                raise ValueError(
                    f"{name}: {value!r} is for GPUs, and device is 'cpu'; set training.device to cuda, or leave {name} "
                    "out"
                )
        return self

    @model_validator(mode="after")
    def _one_way_to_size_the_pool(self) -> Self:
        if self.devices_per_actor is not None and self.num_actors is not None:
            raise ValueError(
                f"devices_per_actor = {self.devices_per_actor} and num_actors = {self.num_actors} both say how many "
                "actors there are; accepted: one of the two; remove the other"
            )
        return self


# Settings that may change between two rounds of a run: a population's trials go on from each other's state with others.
MUTABLE = ("training.learning_rate", "training.batch_size", "training.local_iterations", "training.edge_iterations")


class CheckpointConfig(Section):
    """When the state is saved."""

    every: int = Field(1, ge=0, description="rounds between checkpoints; 0: none, and no resuming")


class TrackingConfig(Section):
    """Where runs are logged."""

    uri: str | None = Field(None, description="MLflow tracking URI; null: sqlite in the results folder")
    experiment: str = Field("hflray", min_length=1, description="name of the MLflow experiment")


class ExperimentConfig(Section):
    """A whole experiment (Algorithm 6)."""

    seed: int = Field(0, ge=0, description="root of every random stream")
    max_rounds: int = Field(50, ge=1, description="I, at most")
    target_accuracy: float | None = Field(None, gt=0, le=1, description="stop at this test accuracy; null: max_rounds")
    data: DataConfig = DataConfig()
    fleet: FleetConfig = FleetConfig()
    cost: CostConfig = CostConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    assignment: AssignmentConfig = AssignmentConfig()
    allocation: AllocationConfig = AllocationConfig()
    learning: LearningConfig = LearningConfig()
    training: TrainingConfig = TrainingConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _counts_fit_the_fleet(self) -> Self:
        n = self.fleet.num_devices
        if self.scheduling.num_scheduled > n:
            raise ValueError(
                f"scheduling.num_scheduled: {self.scheduling.num_scheduled} devices cannot be scheduled out of "
                f"fleet.num_devices = {n}; accepted: 1 to {n}; lower the one or raise the other"
            )
        # Only the clustering schedulers use K; FedAvg on a small fleet must not trip over its default.
        k = self.scheduling.num_clusters
        if k is not None and k > n and self.scheduling.name in ("ikc", "vkc"):
            raise ValueError(
                f"scheduling.num_clusters: {k} clusters cannot be made of fleet.num_devices = {n} devices; "
                f"accepted: 1 to {n}; lower the one or raise the other"
            )
        return self


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, instead of quietly keeping the last, and reads 1e-3 as a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # "<<: *base", which the parent class resolves
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise ConfigError(f"line {key_node.start_mark.line + 1}: key '{key}' is given twice; keep one")
            seen.add(key if isinstance(key, str) else repr(key))
        return super().construct_mapping(node, deep=deep)


class _StrictDumper(yaml.SafeDumper):
    """Writes what `_StrictLoader` reads back: a text such as "1e3" is quoted."""


for _side in (_StrictLoader, _StrictDumper):
    # YAML 1.1 wants a dot and a sign in an exponent, so that 1e-3 would be a text.
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML text; `source` names it in errors. Raises ConfigError."""
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{source}: not valid YAML{line}: {problem}") from error
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def read_mapping(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that must hold a mapping (an empty file is an empty one). Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the configuration ({reason}); give the path of a YAML file") from error
    tree = parse_yaml(text, str(path))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{path}: the file holds a {type(tree).__name__}, but a mapping of settings is needed; "
            "write lines such as 'seed: 0'"
        )
    return tree


def split_override(text: str) -> tuple[str, Any]:
    """Split ``"scheduling.num_scheduled=30"`` into its dotted key and its YAML value. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not all(part.strip() for part in key.split(".")):
        raise ConfigError(
            f"override '{text}': accepted: KEY=VALUE with a dotted key; write it as in scheduling.num_scheduled=30"
        )
    return key.strip(), parse_yaml(value, f"override '{text}'")


def set_dotted(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set ``tree[a][b] = value`` for the dotted key ``a.b``, in place, making sections as needed; or ConfigError."""
    *sections, last = key.split(".")
    for depth, name in enumerate(sections):
        child = tree.setdefault(name, {})
        if child is None:
            child = tree[name] = {}
        if not isinstance(child, dict):
            raise ConfigError(
                f"{key}: '{'.'.join(sections[: depth + 1])}' is a value, not a section; remove what follows it"
            )
        tree = child
    tree[last] = value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings into dotted keys; empty mappings vanish."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """Turn pydantic's report into one line per mistake: the setting, the value, what is accepted, the fix."""
    lines = []
    for item in error.errors(include_url=False):
        location = item["loc"]
        where = prefix + ".".join(str(part) for part in location)
        message, value = item["msg"].removeprefix("Value error, "), item["input"]
        section, field = _at(model, location)
        if item["type"] in ("extra_forbidden", "invalid_key"):
            lines.append(f"{where}: unknown key (got {_short(value)}){_suggest(model, section, location)}")
        elif item["type"] in ("model_type", "dict_type"):
            lines.append(
                f"{where}: got {_short(value)}; accepted: a section (a mapping of settings); "
                f"write its settings as {where}.KEY"
            )
        elif item["type"] == "value_error" and (not location or isinstance(value, dict | BaseModel)):
            # A rule over several settings: its text names them.
            lines.append(f"{where}: {message}" if location else message)
        elif item["type"] == "value_error":
            lines.append(f"{where}: got {_short(value)}; {message}")
        elif field is None:
            lines.append(f"{where}: got {_short(value)}; {message[0].lower()}{message[1:]}")
        else:
            lines.append(
                f"{where}: got {_short(value)}; accepted: {_accepted(field)}"
                + (f" ({field.description})" if field.description else "")
                + _fix(field, value)
            )
    return "\n".join(lines)


def _short(value: object) -> str:
    """A value as one line of bearable length."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _at(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[type[BaseModel], FieldInfo | None]:
    """The section that `location` leads into, and the setting there if it is a known one."""
    parts = iter(location)
    for part in parts:
        field = model.model_fields.get(str(part))
        if field is None:
            return model, None
        inner = _plain(field.annotation)[0]
        if get_origin(inner) is dict:  # keys of the user's own, such as the axes of a sweep; sections may lie below
            inner = get_args(inner)[1]
            next(parts, None)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return model, field
        model = inner
    return model, None


def _suggest(model: type[BaseModel], section: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """What an unknown key may have meant: a neighbour, or a setting of that name elsewhere in the tree."""
    key = str(location[-1])
    known = list(section.model_fields)
    elsewhere = [dotted for dotted in _dotted(model) if dotted.split(".")[-1] == key]
    hint = f"; did you mean '{elsewhere[0]}'?" if elsewhere else nearest(key, known)
    return f"{hint}; accepted: {', '.join(known)}; correct or remove it"


def _dotted(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _dotted(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def _plain(annotation: Any) -> tuple[Any, bool]:
    """An annotation without ``Annotated`` and ``| None``, and whether there was a ``| None``."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    arguments = get_args(annotation)
    if NoneType in arguments and len(arguments) == 2:
        return _plain(next(a for a in arguments if a is not NoneType))[0], True
    return annotation, False


def _accepted(field: FieldInfo) -> str:
    """What a setting accepts, in words: its type and its bounds."""
    annotation, optional = _plain(field.annotation)
    if get_origin(annotation) is Literal:
        text = " or ".join(repr(choice) for choice in get_args(annotation))
    elif get_origin(annotation) is tuple:
        one = _TYPES.get(get_args(annotation)[0], "a value")
        text = f"{one}, or a range [low, high]"
    else:
        text = _TYPES.get(annotation, str(annotation))
    bounds = [
        f"{word} {getattr(rule, name):g}"
        for rule in field.metadata
        for name, word in (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most"))
        if getattr(rule, name, None) is not None
    ]
    text += (" " + " and ".join(bounds)) if bounds else ""
    text += ", not empty" if any(getattr(rule, "min_length", None) for rule in field.metadata) else ""
    return text + (", or null" if optional else "")


_TYPES: dict[Any, str] = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}


def _fix(field: FieldInfo, value: object) -> str:
    annotation, _ = _plain(field.annotation)
    choices = [str(choice) for choice in get_args(annotation)] if get_origin(annotation) is Literal else []
    hint = nearest(str(value), choices)
    default = field.default
    if default is PydanticUndefined or isinstance(default, BaseModel):
        return f"{hint}; correct it"
    if isinstance(default, tuple):
        default = list(default)
    return f"{hint}; correct it, or remove it for the default {'null' if default is None else default}"


def validate(model: type[Model], tree: Mapping[str, Any], prefix: str = "") -> Model:
    """Validate a tree against a model; every mistake becomes one line of a ConfigError."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, model, prefix)) from error


_SWEEP_ONLY = frozenset({"task", "experiment", "sweep", "tune"})  # sections of a sweep file, and of no configuration


def load_config(path: str | Path | None = None, overrides: Iterable[str] = ()) -> ExperimentConfig:
    """Load an experiment's configuration.

    Args:
        path: a YAML file holding the configuration, or a sweep file (its ``experiment:`` section is taken);
            None for the defaults.
        overrides: ``"dotted.key=value"`` strings, applied in order; values are YAML.

    Returns:
        The validated, frozen configuration.

    Raises:
        ConfigError: one line per mistake.
    """
    tree = read_mapping(path) if path is not None else {}
    if not _SWEEP_ONLY.isdisjoint(tree):
        # A setting beside the section, where it would be ignored, is a mistake that changes results.
        astray = [key for key in tree if key in ExperimentConfig.model_fields and key != "tracking"]
        if astray:
            raise ConfigError(
                "\n".join(
                    f"{path}: {key}: got {tree[key]!r} beside the sections of a sweep file, where it has no effect; "
                    f"accepted: under 'experiment:'; move it there"
                    for key in astray
                )
            )
        tree = tree.get("experiment") or {}
        if not isinstance(tree, dict):
            raise ConfigError(
                f"{path}: experiment: got {tree!r}; accepted: a mapping of settings; "
                "write lines such as 'seed: 0' below it"
            )
    for text in overrides:
        set_dotted(tree, *split_override(text))
    return validate(ExperimentConfig, tree)


def to_yaml(config: BaseModel) -> str:
    """Return the resolved configuration as YAML that `load_config` reads back to an equal one."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_StrictDumper, sort_keys=False, allow_unicode=True)
