"""Table II over the choices that the paper leaves open: what Algorithm 2 costs by each, beside the paper's figures.

``python -m hflray.report choices`` draws fleets, bills Algorithm 2 on each by every choice, and ranks the choices by
how far they are from the paper. Nothing is trained: the bill (equations (4) to (10), (13), (14) over all N devices, no
cloud hop) depends on the fleet, z and D_n only. The fleets are a function of the seed; by every choice and for every
row of the table, a fleet has the same positions, links and cycles per sample.
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
from hflray.tracking import environment

VERSION = 1
ABOUT, BILLS = "choices.json", "bills.parquet"
NAME = "table2_choices"  # folder of the export
NEAR = 0.25  # a number within this share of the paper's agrees with it
# λ at which energy decides nothing: the delay is then the least there is, and every frequency at its cap.
LEAST_DELAY_WEIGHT = 1e9


@dataclass(frozen=True)
class Row:
    """A row of the paper's Table II: z in KB and the range of D_n from Table I, delay (s) and energy (J)."""

    label: str
    model_kb: float
    samples: tuple[int, int]
    delay_s: float
    energy_j: float


# The paper does not say on which data set its one row of IKC was taken; D_n is Fashion-MNIST's here.
ROWS = (
    Row("IKC", 10.0, FASHION_RANGE, 3.1, 23.5),
    Row("VKC, Fashion-MNIST", 448.0, FASHION_RANGE, 128.0, 671.0),
    Row("VKC, CIFAR-10", 882.0, CIFAR_RANGE, 252.6, 1317.0),
)
DELAYS = [f"delay_{number}_s" for number in range(len(ROWS))]
ENERGIES = [f"energy_{number}_j" for number in range(len(ROWS))]
NUMBERS = DELAYS + ENERGIES
PAPER = pd.Series([row.delay_s for row in ROWS] + [row.energy_j for row in ROWS], NUMBERS)
NOISES = {"dBm/Hz": -174.0, "dBm/MHz": -234.0}  # -174 by either unit, in dBm/Hz


@dataclass(frozen=True)
class Choice:
    """One way to read what the paper leaves open.

    Attributes:
        power: dbm or watt: how p_n is drawn, see ``fleet.power_law``.
        noise: dBm/Hz or dBm/MHz, the unit of N_0 = -174; the paper prints the second.
        edge: nearest or random: where a device goes; Algorithm 2 says "an edge server".
        allocation: λ, problem (27) at the configuration's λ; or least delay.
        cpu: frequency billed: allocated, or max for f_n^max; at the least delay they are the same.
        iterations: edge iterations billed: 1 or Q.
    """

    power: str
    noise: str
    edge: str
    allocation: str
    cpu: str
    iterations: str


CHOICE = [field.name for field in fields(Choice)]
OURS = Choice("dbm", "dBm/Hz", "nearest", "λ", "allocated", "1")  # the defaults of the configuration
# Settings that the study sets itself.
SWEPT = ("fleet.power_law", "fleet.noise_dbm_per_hz", "fleet.samples", "cost.model_kb", "scheduling.clustering_bill",
         "data.name")  # fmt: skip


def all_choices() -> list[Choice]:
    """Every combination; at the least delay once, because all frequencies are f_n^max then."""
    ways = (("λ", "allocated"), ("λ", "max"), ("least delay", "max"))
    found = itertools.product(("dbm", "watt"), NOISES, ("nearest", "random"), ways, ("1", "Q"))
    return [Choice(power, noise, edge, way, cpu, iterations) for power, noise, edge, (way, cpu), iterations in found]


def bill(config: ExperimentConfig, fleet: Fleet, row: Row, choice: Choice, edges: Any = None) -> tuple[float, float]:
    """Delay (s) and energy (J) of Algorithm 2 on one fleet; `edges` (N,) replaces the nearest ones."""
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
    """Bill Algorithm 2 by every choice on `fleets` random fleets.

    Args:
        config: its sections ``fleet``, ``training`` (L and Q), ``cost.delay_weight`` and ``allocation.method``.
        fleets: how many.
        progress: called with how many are done, and of how many.

    Returns:
        A row for each choice and fleet: the fields of `Choice`, ``fleet`` from 1, and `NUMBERS` (s and J).

    Raises:
        ConfigError: no fleets are asked for.
        InfeasibleError: an edge's allocation failed.
    """
    if fleets < 1:
        raise ConfigError(f"--fleets: got {fleets}; accepted: 1 or more; the study shipped has 200")
    found = []
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
            these = drawn[choice.power, choice.noise]
            bills = [bill(config, fleet, row, choice, edges) for fleet, row in zip(these, ROWS, strict=True)]
            numbers = [delay for delay, _ in bills] + [energy for _, energy in bills]
            found.append(asdict(choice) | {"fleet": index} | dict(zip(NUMBERS, numbers, strict=True)))
        if progress is not None:
            progress(index, fleets)
    return pd.DataFrame(found)


def rank(bills: pd.DataFrame) -> pd.DataFrame:
    """How far each choice is from the paper, the nearest first.

    Returns:
        A row for each choice: its fields; the mean and the median over the fleets of each of `NUMBERS` (``mean/…``,
        ``median/…``); ``mean/worst`` and ``median/worst``, the largest of the six distances |ours / paper − 1|, and the
        same of the delays alone, ``…/worst_delay``; ``fleets/delays`` and ``fleets/six``, the share of the fleets on
        which the three delays, or all six numbers, are within `NEAR`; and ``matching/energy_…``, the mean energies over
        the fleets whose delays are. By ``mean/worst``.
    """
    rows = []
    for key, of_choice in bills.groupby(CHOICE, sort=False):
        values = of_choice[NUMBERS]
        row: dict[str, Any] = dict(zip(CHOICE, key, strict=True))
        for name, statistic in (("mean", values.mean()), ("median", values.median())):
            away = (statistic / PAPER - 1).abs()
            row |= {f"{name}/{number}": statistic[number] for number in NUMBERS}
            row |= {f"{name}/worst": away.max(), f"{name}/worst_delay": away[DELAYS].max()}
        near = (values / PAPER - 1).abs() <= NEAR
        delays = near[DELAYS].all(axis=1)
        row |= {"fleets/delays": delays.mean(), "fleets/six": near.all(axis=1).mean()}
        row |= {f"matching/{number}": values.loc[delays, number].mean() for number in ENERGIES}
        rows.append(row)
    return pd.DataFrame(rows).sort_values("mean/worst", kind="stable", ignore_index=True)


@dataclass(frozen=True)
class Study:
    """The bills of a study and what they were made with."""

    bills: pd.DataFrame
    overrides: tuple[str, ...]
    fleets: int
    date: str
    environment: dict[str, str]

    @classmethod
    def make(cls, overrides: Sequence[str], fleets: int, progress: Callable[[int, int], None] | None = None) -> Study:
        """Run the study with a configuration of ``KEY=VALUE`` overrides.

        Raises:
            ConfigError: a mistake in an override, or it is of something that the study sets itself.
            InfeasibleError: an edge's allocation failed.
        """
        for text in overrides:
            if text.startswith(SWEPT):
                raise ConfigError(f"--set {text}: the study sets this itself, by every choice; leave it out")
        bills = run(load_config(None, overrides), fleets, progress)
        return cls(bills, tuple(overrides), fleets, time.strftime("%Y-%m-%d", time.gmtime()), environment())

    @property
    def commit(self) -> str:
        """The commit it ran from, short; ``-dirty``: with changes that are in no commit."""
        whole = self.environment.get("git_commit", "unknown")
        return whole[:12] + ("-dirty" if whole.endswith("-dirty") else "")

    @property
    def config(self) -> ExperimentConfig:
        """The configuration."""
        return load_config(None, self.overrides)

    def export(self, folder: Path) -> list[Path]:
        """Write it into ``folder/table2_choices``: every fleet's bills, in single precision, and what made them."""
        place = folder / NAME
        place.mkdir(parents=True, exist_ok=True)
        about = {
            "version": VERSION, "overrides": list(self.overrides), "fleets": self.fleets, "date": self.date,
            "environment": self.environment,
        }  # fmt: skip
        (place / ABOUT).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        small = self.bills.astype(
            dict.fromkeys(NUMBERS, "float32") | {"fleet": "int16"} | dict.fromkeys(CHOICE, "category")
        )
        small.to_parquet(place / BILLS, compression="zstd", index=False)
        return [place / ABOUT, place / BILLS]

    @classmethod
    def read(cls, folder: Path) -> Study | None:
        """What `export` wrote into ``folder/table2_choices``, or None if there is nothing. Raises ConfigError."""
        place = folder / NAME
        if not (place / ABOUT).exists():
            return None
        try:
            about = json.loads((place / ABOUT).read_text(encoding="utf-8"))
            if about["version"] != VERSION:
                raise ConfigError(f"{place}: an export of version {about['version']}; this hflray reads {VERSION}")
            bills = pd.read_parquet(place / BILLS)
            bills = bills.astype(dict.fromkeys(CHOICE, "str") | dict.fromkeys(NUMBERS, "float64"))
            return cls(bills, tuple(about["overrides"]), about["fleets"], about["date"], about["environment"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{place}: cannot be read ({error}); write it again with --export {folder}") from error
