"""A cache of solved fleets, solved ahead and in parallel so that training never waits for a teacher.

A folder with ``spec.json`` and ``fleets-FIRST-END.npz``; nothing in it is pickled. Fleets are numbered and each is a
function of the specification and its number, so a cache can grow while it is read, and two machines make the same one.

    python -m hflray.rl.pool --config FILE --set learning.fleets=5000      # solve ahead
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hflray.assignment import build_assigner
from hflray.assignment.objective import RoundProblem
from hflray.config import load_config
from hflray.errors import ConfigError, HflrayError
from hflray.rl.fleets import FORMAT, FleetSpec, SolvedFleet

SPEC = "spec.json"


def default_cache(spec: FleetSpec) -> Path:
    """Where a specification's fleets are kept unless a folder is given."""
    return Path("~/.cache/hflray/fleets").expanduser() / spec.hash


class FleetPool:
    """The solved fleets of a cache, in memory. Read-only; copies are the pool itself.

    Args:
        folder: the cache.
        spec: what is expected there; None: whatever it holds.
        count: use the first so many fleets; None: all there are.

    Raises:
        ConfigError: no cache there, one of another specification, or fewer fleets than `count`.
    """

    def __init__(self, folder: str | Path, spec: FleetSpec | None = None, count: int | None = None) -> None:
        self.folder, self.spec = Path(folder), read_spec(Path(folder))
        if spec is not None:
            check_same(self.folder, self.spec, spec)
        self.fleets: list[SolvedFleet] = []
        self.solve_s = 0.0
        self.refresh()
        if count is not None:
            if len(self.fleets) < count:
                raise ConfigError(
                    f"learning.fleets: {count} wanted, {self.folder} holds {len(self.fleets)}; solve the rest with: "
                    f"python -m hflray.rl.pool --config FILE --set learning.fleets={count}"
                )
            del self.fleets[count:]

    def __len__(self) -> int:
        return len(self.fleets)

    def __getitem__(self, index: int) -> SolvedFleet:
        return self.fleets[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> FleetPool:
        return self

    def __reduce__(self) -> tuple[Any, ...]:  # gigabytes do not travel: whoever unpickles it reads the cache
        return FleetPool, (self.folder, self.spec, len(self))

    @property
    def num_edges(self) -> int:
        """The largest M of the specification: what rows are padded to."""
        return self.spec.num_edges[1]

    def refresh(self) -> int:
        """Take in fleets solved since; return how many there are now."""
        for first, end, path in _shards(self.folder):
            if first <= len(self.fleets) < end:
                fleets, solve_s = _read_shard(path)
                self.fleets += fleets[len(self.fleets) - first :]
                self.solve_s += solve_s
        return len(self.fleets)


def read_spec(folder: Path) -> FleetSpec:
    """The specification of a cache. Raises ConfigError: there is none, or it is of another format."""
    try:
        content = json.loads((folder / SPEC).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, this hflray reads {FORMAT}")
        return FleetSpec.from_dict(content["spec"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"learning.cache: {folder} holds no solved fleets ({error}); give another folder, or remove it"
        ) from error


def check_same(folder: Path, held: FleetSpec, wanted: FleetSpec) -> None:
    """Raise ConfigError that names what differs between a cache and what is wanted of it."""
    if held.hash == wanted.hash:
        return
    ours, theirs = held.to_dict(), wanted.to_dict()
    ours, theirs = ours | ours.pop("fleet"), theirs | theirs.pop("fleet")
    differ = [f"{key} = {ours[key]} there, {theirs[key]} here" for key in theirs if ours.get(key) != theirs[key]]
    raise ConfigError(
        f"learning.cache: {folder} holds fleets of another configuration ({'; '.join(differ)}); give another folder, "
        "null for one of its own, or the configuration it was made with"
    )


def prepare(
    spec: FleetSpec,
    count: int,
    folder: str | Path | None = None,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    ray: bool = False,
    shard: int = 250,
) -> FleetPool:
    """Open the cache of `spec`, after solving what is missing of `count` fleets.

    Args:
        spec: which fleets.
        count: how many.
        folder: the cache; None: `default_cache`.
        workers: threads that solve (kernels run without the interpreter lock); None: a CPU each.
        progress: called with the fleets there are and `count`.
        ray: solve as Ray tasks, one CPU each, on whatever cluster Ray is connected to.
        shard: fleets in a file. What is finished is kept if the process is stopped.

    Raises:
        ConfigError: the cache is of another specification, or a teacher's option is unknown.
    """
    target = Path(folder).expanduser() if folder is not None else default_cache(spec)
    if (target / SPEC).exists():
        check_same(target, read_spec(target), spec)
    elif target.is_dir() and any(target.iterdir()):
        raise ConfigError(f"learning.cache: {target} is not empty and no cache; give another folder, or empty it")
    else:
        build_assigner(spec.teacher, **spec.options)  # an unknown option is said before a folder is made
        target.mkdir(parents=True, exist_ok=True)
        content = {"format": FORMAT, "hash": spec.hash, "spec": spec.to_dict()}
        write_file(target / SPEC, lambda path: path.write_text(json.dumps(content, indent=1), encoding="utf-8"))
    there = _solved(target)
    if progress:
        progress(min(there, count), count)
    solve = _solve_with_ray if ray else _solve_with_threads
    step = max(1, min(shard, count - there))
    while there < count:
        end = min(there + step, count)
        begin = time.perf_counter()
        fleets = solve(spec, there, end, workers or len(os.sched_getaffinity(0)))
        write_shard(target / f"fleets-{there:08d}-{end:08d}.npz", fleets, time.perf_counter() - begin)
        there = end
        if progress:
            progress(there, count)
    return FleetPool(target, spec, count)


def _solve_with_threads(spec: FleetSpec, first: int, end: int, workers: int) -> list[SolvedFleet]:
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(spec.solve, range(first, end)))


def _solve_with_ray(spec: FleetSpec, first: int, end: int, workers: int) -> list[SolvedFleet]:
    import ray

    def some(indices: list[int]) -> list[SolvedFleet]:
        return [spec.solve(index) for index in indices]

    task = ray.remote(num_cpus=1)(some)
    parts = [range(first, end)[i : i + 10] for i in range(0, end - first, 10)]
    return [fleet for part in ray.get([task.remote(list(part)) for part in parts]) for fleet in part]


_PER_DEVICE = ("cycles", "power", "cap")
_PER_EDGE = ("bandwidth", "hop_delay", "hop_energy")
_SCALARS = ("iterations", "weight", "bits", "alpha")


def write_shard(path: Path, fleets: list[SolvedFleet], solve_s: float) -> None:
    problems = [fleet.problem for fleet in fleets]
    arrays: dict[str, Any] = {
        "h": np.array([len(p.cycles) for p in problems]),
        "m": np.array([len(p.bandwidth) for p in problems]),
        "snr": np.concatenate([p.snr.ravel() for p in problems]),
        "labels": np.concatenate([fleet.labels for fleet in fleets]),
        "objective": np.array([fleet.objective for fleet in fleets]),
        "cycles_per_sample": np.concatenate([fleet.cycles_per_sample for fleet in fleets]),
        "samples": np.concatenate([fleet.samples for fleet in fleets]),
        "solve_s": np.array(solve_s),
    }
    arrays |= {name: np.concatenate([getattr(p, name) for p in problems]) for name in (*_PER_DEVICE, *_PER_EDGE)}
    arrays |= {name: np.array([getattr(p, name) for p in problems]) for name in _SCALARS}
    write_file(path, lambda scratch: np.savez(scratch, **arrays))


def _read_shard(path: Path) -> tuple[list[SolvedFleet], float]:
    try:
        with np.load(path, allow_pickle=False) as file:
            a = {name: file[name] for name in file.files}
        h, m = np.concatenate([[0], a["h"].cumsum()]), np.concatenate([[0], a["m"].cumsum()])
        links = np.concatenate([[0], (a["h"] * a["m"]).cumsum()])
        fleets = []
        for i in range(len(a["h"])):
            device, edge = slice(h[i], h[i + 1]), slice(m[i], m[i + 1])
            values: dict[str, Any] = {name: a[name][device] for name in _PER_DEVICE}
            values |= {name: a[name][edge] for name in _PER_EDGE}
            values |= {name: float(a[name][i]) for name in _SCALARS}
            snr = a["snr"][links[i] : links[i + 1]].reshape(a["m"][i], a["h"][i])
            problem = RoundProblem(snr=snr, **values)
            objective = float(a["objective"][i])
            own = a["cycles_per_sample"][device], a["samples"][device]
            fleets.append(SolvedFleet(problem, a["labels"][device], objective, *own))
        return fleets, float(a["solve_s"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{path}: a damaged file of solved fleets ({error}); remove it and run again") from error


def _shards(folder: Path) -> list[tuple[int, int, Path]]:
    """Files of fleets by their first number; of two that begin alike the longer one last."""
    found = []
    for path in folder.glob("fleets-*-*.npz"):
        _, first, end = path.stem.split("-")
        found.append((int(first), int(end), path))
    return sorted(found)


def _solved(folder: Path) -> int:
    there = 0
    for first, end, _ in _shards(folder):
        there = max(there, end) if first <= there else there
    return there


def write_file(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file in one step: whoever reads the folder sees all of it or nothing."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as scratch:
        write(Path(scratch) / path.name)
        os.replace(Path(scratch) / path.name, path)


def main(arguments: list[str] | None = None) -> int:
    """``python -m hflray.rl.pool``: solve the fleets of a configuration ahead."""
    from rich.progress import Progress

    parser = argparse.ArgumentParser(prog="python -m hflray.rl.pool", description="Solve fleets ahead of training.")
    parser.add_argument("--config", type=Path, help="configuration or sweep file (YAML); default: all defaults")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting")
    parser.add_argument("--workers", type=int, help="threads; default: one a CPU")
    given = parser.parse_args(arguments)
    try:
        config = load_config(given.config, given.set)
        with Progress() as bar:
            task = bar.add_task("fleets solved")

            def progress(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            learning = config.learning
            pool = prepare(
                FleetSpec.of(config), learning.fleets, learning.cache, workers=given.workers, progress=progress
            )
    except HflrayError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{len(pool)} fleets in {pool.folder}, solved in {pool.solve_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
