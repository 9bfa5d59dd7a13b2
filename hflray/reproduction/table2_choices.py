"""A study of Table II: the cost of Algorithm 2 under each choice that the paper leaves open, compared with the paper.

``python -m hflray.report choices`` draws fleets, bills Algorithm 2 on each of them under every choice, and ranks the
choices by their distance from the paper. Nothing is trained, because the bill (equations (4) to (10), (13), (14) over
all N devices, without a cloud hop) depends only on the fleet, z and D_n. The fleets are a function of the seed. Under
every choice and for every row of the table, a fleet has the same positions, links and cycles per sample.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from hflray.allocation import allocate_round
from hflray.config import BITS_PER_KB, ExperimentConfig, load_config
from hflray.data.datasets import CIFAR_RANGE, FASHION_RANGE
from hflray.errors import ConfigError
from hflray.fleet import Fleet, sample_fleet
from hflray.scheduling import clustering_cost
from hflray.seeding import stream
from hflray.support.files import replacing, write
from hflray.tracking import environment

VERSION = 1
ABOUT, BILLS = "choices.json", "bills.parquet"
NAME = "table2_choices"  # the folder of the export
NEAR = 0.25  # the largest relative distance at which a number agrees with the paper's
# With this λ, in J/s, energy does not matter: the delay is minimal and every frequency is at its cap.
LEAST_DELAY_WEIGHT = 1e9


@dataclass(frozen=True)
class Row:
    """A row of the paper's Table II.

    Attributes:
        label: the scheduler and, where the paper says it, the data set.
        model_kb: z from Table I, in KB.
        samples: the range of D_n from Table I.
        delay_s: the paper's delay.
        energy_j: the paper's energy.
    """

    label: str
    model_kb: float
    samples: tuple[int, int]
    delay_s: float
    energy_j: float


# The paper does not say which data set its only row of IKC belongs to; we take the D_n of Fashion-MNIST.
ROWS = (
    Row("IKC", 10.0, FASHION_RANGE, 3.1, 23.5),
    Row("VKC, Fashion-MNIST", 448.0, FASHION_RANGE, 128.0, 671.0),
    Row("VKC, CIFAR-10", 882.0, CIFAR_RANGE, 252.6, 1317.0),
)
DELAYS = [f"delay_{number}_s" for number in range(len(ROWS))]
ENERGIES = [f"energy_{number}_j" for number in range(len(ROWS))]
NUMBERS = DELAYS + ENERGIES
PAPER = pd.Series([row.delay_s for row in ROWS] + [row.energy_j for row in ROWS], NUMBERS)
NOISES = {"dBm/Hz": -174.0, "dBm/MHz": -234.0}  # -174 in either unit, converted to dBm/Hz


@dataclass(frozen=True)
class Choice:
    """One way to read what the paper leaves open.

    Attributes:
        power: ``dbm`` or ``watt``, the law of p_n (``fleet.power_law``).
        noise: ``dBm/Hz`` or ``dBm/MHz``, the unit of N_0 = -174; the paper prints the second.
        edge: ``nearest`` or ``random``, the edge of a device; Algorithm 2 says "an edge server".
        allocation: ``λ`` for problem (27) with the configuration's λ, or ``least delay``.
        cpu: the billed frequency: ``allocated``, or ``max`` for f_n^max. They are equal at the least delay.
        iterations: the billed edge iterations, ``1`` or ``Q``.
    """

    power: str
    noise: str
    edge: str
    allocation: str
    cpu: str
    iterations: str


CHOICE = [field.name for field in fields(Choice)]
OURS = Choice("dbm", "dBm/Hz", "nearest", "λ", "allocated", "1")  # the configuration's defaults
# The settings that the study sets itself, so that no override may.
SWEPT = ("fleet.power_law", "fleet.noise_dbm_per_hz", "fleet.samples", "cost.model_kb", "scheduling.clustering_bill",
         "data.name")  # fmt: skip


def all_choices() -> list[Choice]:
    """Return every combination. The least delay occurs with one billed frequency, because all are then f_n^max."""
    allocations = (("λ", "allocated"), ("λ", "max"), ("least delay", "max"))
    combinations = itertools.product(("dbm", "watt"), NOISES, ("nearest", "random"), allocations, ("1", "Q"))
    return [
        Choice(power, noise, edge, allocation, cpu, iterations)
        for power, noise, edge, (allocation, cpu), iterations in combinations
    ]


def bill(config: ExperimentConfig, fleet: Fleet, row: Row, choice: Choice, edges: Any = None) -> tuple[float, float]:
    """Return the delay (s) and the energy (J) of Algorithm 2 on one fleet; `edges` (N,) replaces the nearest edges."""
    weight = LEAST_DELAY_WEIGHT if choice.allocation == "least delay" else config.cost.delay_weight
    cost = clustering_cost(
        fleet,
        row.model_kb * BITS_PER_KB,
        config.training.local_iterations,
        weight,
        partial(allocate_round, method=config.allocation.method),
        edge_iterations=config.training.edge_iterations if choice.iterations == "Q" else 1,
        max_cpu=choice.cpu == "max",
        assignment=edges,
    )
    return cost.delay_s, cost.energy_j


def run(config: ExperimentConfig, fleets: int, progress: Callable[[int, int], None] | None = None) -> pd.DataFrame:
    """Bill Algorithm 2 under every choice on random fleets.

    Args:
        config: the configuration, of which ``fleet``, ``training`` (L and Q), ``cost.delay_weight`` and
            ``allocation.method`` are used.
        fleets: the number of fleets.
        progress: is called with the number of fleets that are done and the number of all fleets.

    Returns:
        One row per choice and fleet, with the fields of `Choice`, ``fleet`` (counted from 1) and `NUMBERS` (s and J).

    Raises:
        ConfigError: `fleets` is less than 1.
        InfeasibleError: an edge's allocation failed.
    """
    if fleets < 1:
        raise ConfigError(f"--fleets: got {fleets}; accepted: 1 or more; the study shipped has 200")
    rows = []
    for index in range(1, fleets + 1):
        scattered = stream(config.seed, "table2/edges", index).integers(
            config.fleet.num_edges, size=config.fleet.num_devices
        )
        drawn: dict[tuple[str, str], list[Fleet]] = {}
        for power, noise in itertools.product(("dbm", "watt"), NOISES):
            update = {"power_law": power, "noise_dbm_per_hz": NOISES[noise]}
            drawn[power, noise] = [
                sample_fleet(
                    config.fleet.model_copy(update=update | {"samples": row.samples}),
                    stream(config.seed, "table2", index),
                )
                for row in ROWS
            ]
        for choice in all_choices():
            edges = scattered if choice.edge == "random" else None
            samples = drawn[choice.power, choice.noise]
            bills = [bill(config, fleet, row, choice, edges) for fleet, row in zip(samples, ROWS, strict=True)]
            numbers = [delay for delay, _ in bills] + [energy for _, energy in bills]
            rows.append(asdict(choice) | {"fleet": index} | dict(zip(NUMBERS, numbers, strict=True)))
        if progress is not None:
            progress(index, fleets)
    return pd.DataFrame(rows)


def rank(bills: pd.DataFrame) -> pd.DataFrame:
    """Rank the choices by ``mean/worst``, their distance from the paper.

    Returns:
        One row per choice, with its fields and these columns:

        * ``mean/…`` and ``median/…``: the mean and the median over the fleets of each of `NUMBERS`;
        * ``mean/worst`` and ``median/worst``: the largest of the six distances |ours / paper − 1|;
        * ``mean/worst_delay`` and ``median/worst_delay``: the largest of the three distances of the delays;
        * ``fleets/delays`` and ``fleets/six``: the share of the fleets on which the three delays, or all six numbers,
          are within `NEAR`;
        * ``matching/energy_…``: the mean energies over the fleets whose three delays are within `NEAR`.
    """
    rows = []
    for key, of_choice in bills.groupby(CHOICE, sort=False):
        values = of_choice[NUMBERS]
        row: dict[str, Any] = dict(zip(CHOICE, key, strict=True))
        for name, statistic in (("mean", values.mean()), ("median", values.median())):
            distance = (statistic / PAPER - 1).abs()
            row |= {f"{name}/{number}": statistic[number] for number in NUMBERS}
            row |= {f"{name}/worst": distance.max(), f"{name}/worst_delay": distance[DELAYS].max()}
        near = (values / PAPER - 1).abs() <= NEAR
        delays = near[DELAYS].all(axis=1)
        row |= {"fleets/delays": delays.mean(), "fleets/six": near.all(axis=1).mean()}
        row |= {f"matching/{number}": values.loc[delays, number].mean() for number in ENERGIES}
        rows.append(row)
    return pd.DataFrame(rows).sort_values("mean/worst", kind="stable", ignore_index=True)


@dataclass(frozen=True)
class Study:
    """The bills of a study, and the settings, fleets, date and environment that they were made with."""

    bills: pd.DataFrame
    overrides: tuple[str, ...]
    fleets: int
    date: str
    environment: dict[str, str]

    @classmethod
    def make(cls, overrides: Sequence[str], fleets: int, progress: Callable[[int, int], None] | None = None) -> Study:
        """Run the study with the default configuration and ``KEY=VALUE`` overrides.

        Raises:
            ConfigError: an override is wrong, or changes a setting that the study sets itself.
            InfeasibleError: an edge's allocation failed.
        """
        for text in overrides:
            if text.startswith(SWEPT):
                raise ConfigError(f"--set {text}: the study sets this itself, under every choice; leave it out")
        bills = run(load_config(None, overrides), fleets, progress)
        return cls(bills, tuple(overrides), fleets, time.strftime("%Y-%m-%d", time.gmtime()), environment())

    @property
    def commit(self) -> str:
        """The commit that ran the study, shortened; ``-dirty`` is appended if there were uncommitted changes."""
        whole = self.environment.get("git_commit", "unknown")
        return whole[:12] + ("-dirty" if whole.endswith("-dirty") else "")

    @property
    def config(self) -> ExperimentConfig:
        """The study's configuration."""
        return load_config(None, self.overrides)

    def export(self, folder: Path) -> list[Path]:
        """Write the bills, in single precision, and their settings into ``folder/table2_choices``; return the paths."""
        export = folder / NAME
        about = {
            "version": VERSION, "overrides": list(self.overrides), "fleets": self.fleets, "date": self.date,
            "environment": self.environment,
        }  # fmt: skip
        write(export / ABOUT, json.dumps(about, indent=1) + "\n")
        compact = self.bills.astype(
            dict.fromkeys(NUMBERS, "float32") | {"fleet": "int16"} | dict.fromkeys(CHOICE, "category")
        )
        with replacing(export / BILLS) as scratch:
            compact.to_parquet(scratch, compression="zstd", index=False)
        return [export / ABOUT, export / BILLS]

    @classmethod
    def read(cls, folder: Path) -> Study | None:
        """Read what `export` wrote into ``folder/table2_choices``; return None if it does not exist.

        Raises:
            ConfigError: the export is damaged or of another version.
        """
        export = folder / NAME
        if not (export / ABOUT).exists():
            return None
        try:
            about = json.loads((export / ABOUT).read_text(encoding="utf-8"))
            if about["version"] != VERSION:
                raise ConfigError(f"{export}: an export of version {about['version']}; this hflray reads {VERSION}")
            bills = pd.read_parquet(export / BILLS)
            bills = bills.astype(dict.fromkeys(CHOICE, "str") | dict.fromkeys(NUMBERS, "float64"))
            return cls(bills, tuple(about["overrides"]), about["fleets"], about["date"], about["environment"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{export}: cannot be read ({error}); write it again with --export {folder}") from error
