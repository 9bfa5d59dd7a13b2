"""The computations of the golden test, with the tree of hflray that comes first on the path.

The command ``python tests/golden/driver.py TREE KIND OUT`` with ``PYTHONPATH=TREE`` writes the results to the JSON file
OUT; KIND is ``everything``, ``later``, ``inside``, ``rounds``, ``systems`` or ``bills``. This file may use only what
commit 6c93c38 has, for ``later`` what 319efcb has, for ``inside`` and ``rounds`` what d5bfa28 has, and for ``systems``
what afbe98f has. Times of this machine (``wall/…``) are left out, and all other results are compared.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

# Settings that would otherwise be measured on this machine are fixed: kernel, threads, number of actors. Pairs of
# scheduler and assigner are not their full product. One deadline for all edges (`joint`) is used only where the
# assigner and Algorithm 2 do not depend on it: since issue 13 both take it into account, which changed their answers.
CASES: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))
LEARNING_TIMES = ("wall/learn_s", "assigner/steps_per_s")


def experiment(*overrides: str, clusters: list[int] | None = None) -> dict[str, Any]:
    """Return all rounds of an experiment, its clusters and the bill of its clustering.

    Args:
        *overrides: overrides of the configuration, applied after `small`.
        clusters: clusters to use instead of trained ones.
    """
    import numpy as np

    from hflray.config import load_config
    from hflray.experiment import Experiment

    rounds = []
    with Experiment(load_config(None, [*CASES["small"], *overrides]), cpus=2) as run:
        if clusters is not None:
            run.clusters = np.array(clusters)
        for record in run:
            values = {name: value for name, value in record.metrics().items() if not name.startswith("wall/")}
            values |= {"samples_trained": record.samples_trained}
            rounds.append({"hash": record.model_hash, "bill": values, "schedule": record.schedule()})
        return {"rounds": rounds, "devices": run.devices(), "summary": run.summary()}


def study(*overrides: str) -> list[dict[str, float]]:
    """Run the task ``assignment`` and return the bill of every fleet."""
    try:
        from hflray.experiment.study import run_study
    except ModuleNotFoundError:  # its name in early commits
        from hflray.study import run_study

    from hflray.config import load_config

    config = load_config(None, ["max_rounds=3", *CASES["study"], *overrides])
    return [{k: v for k, v in fleet.metrics().items() if not k.startswith("wall/")} for fleet in run_study(config)]


def clustering(*overrides: str) -> dict[str, Any]:
    """Run the task ``clustering`` and return the clusters, their ARI and the bill."""
    from hflray.config import load_config
    from hflray.experiment import Experiment

    with Experiment(load_config(None, [*CASES["small"], *overrides]), cpus=2) as run:
        return {"clusters": run.cluster().tolist(), "summary": run.summary()}


def training(folder: str, *overrides: str) -> dict[str, Any]:
    """Run the task ``train_assigner``; return its curve, the policy's hash and specification, and its fleets' keys."""
    from hflray.assignment.d3qn import load_policy
    from hflray.config import load_config
    from hflray.rl.fleets import FleetSpec
    from hflray.rl.session import AssignerTraining

    config = load_config(None, [*CASES["learning"], f"learning.cache={folder}/fleets", *overrides])
    with AssignerTraining(config) as run:
        while not run.finished:
            run.advance()
        points = [{k: v for k, v in point.items() if k not in LEARNING_TIMES} for point in run.points]
        run.save_policy(f"{folder}/policy.safetensors")
    network, _ = load_policy(f"{folder}/policy.safetensors")
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    keys = {"train": FleetSpec.of(config).hash, "held_out": FleetSpec.of(config, held_out=True).hash}
    return {"points": points, "policy": digest.hexdigest(), "spec": asdict(network.spec), "fleets": keys}


def everything() -> dict[str, Any]:
    """Return the results of all cases, computed in one process with one Ray."""
    import ray

    _start()
    try:
        results: dict[str, Any] = {"imported": [_imported_tree(), ray.get(ray.remote(_imported_tree).remote())]}
        results["experiments"] = {name: experiment(*overrides) for name, overrides in CASES["experiments"].items()}
        results["studies"] = {name: study(*overrides) for name, overrides in CASES["studies"].items()}
        names = ("ikc", "vkc")
        results["clusterings"] = {name: clustering(f"scheduling.name={name}") for name in names}
        results["trainings"] = {}
        for name, overrides in CASES["trainings"].items():
            with tempfile.TemporaryDirectory() as folder:
                results["trainings"][name] = training(folder, *overrides)
    finally:
        ray.shutdown()
    return results


# Bills that depend on the configuration alone: FedAvg draws devices independently of weights, and IKC and VKC get fixed
# clusters. A local iteration trains one sample, because the bill does not depend on how well a model is trained.
FIXED_CLUSTERS = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 2]
UNTRAINED = ("training.local_iteration=step", "training.batch_size=1", "training.edge_iterations=1")
OF_TRAINING = ("accuracy", "test_loss")


def bills() -> dict[str, Any]:
    """Return bills and schedules that do not depend on trained weights, which all machines reproduce to 1e-12."""
    results: dict[str, Any] = {"experiments": {}, "clusterings": {}}
    for name, overrides in CASES["bills"].items():
        clusters = None if name.startswith("fedavg") else FIXED_CLUSTERS
        run = experiment(*UNTRAINED, "max_rounds=3", *overrides, clusters=clusters)
        for entry in run["rounds"]:
            del entry["hash"]
            for metric in OF_TRAINING:
                del entry["bill"][metric]
        results["experiments"][name] = run
    for name in ("ikc", "vkc"):
        summary = clustering(*UNTRAINED, f"scheduling.name={name}")["summary"]
        results["clusterings"][name] = {key: summary[f"clustering/{key}"] for key in ("delay_s", "energy_j")}
    one_fleet = ("max_rounds=1",)  # the lower bound of a fleet takes most of a second
    results["studies"] = {
        name: study(*CASES["studies"][name], *one_fleet) for name in ("d3qn polished", "hfel", "best_gain joint")
    }
    return results


def _start() -> None:
    """Start Ray on two CPUs. The attempts are repeated, because a busy machine may exceed Ray's limit of 30 s."""
    from hflray.training.hierarchy import start_ray

    for attempt in range(5):
        try:
            start_ray(2)
            return
        except Exception:
            if attempt == 4:
                raise


def _imported_tree() -> str:
    import hflray

    return str(Path(hflray.__file__).parents[1])


def on_actors(kind: str, *more: str) -> dict[str, Any]:
    """Return the results of the cases ``later`` or ``inside``, computed in one process with one Ray."""
    import ray

    _start()
    try:
        return {name: experiment(*more, *overrides) for name, overrides in CASES[kind].items()}
    finally:
        ray.shutdown()


def case(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return the rounds of an experiment, the last one of a saved state, or the error that ends it."""
    from hflray.config import load_config
    from hflray.errors import HflrayError
    from hflray.experiment import Experiment

    rounds: list[dict[str, Any]] = []
    try:
        config = load_config(None, [*CASES["base"], *overrides])
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


def main(tree: str, kind: str, out: str) -> None:
    """Write the results of `tree` as JSON, which keeps every bit of a float; `kind` is as above."""
    if kind == "bills":
        results = {"imported": [_imported_tree()], **bills()}
    elif kind == "everything":
        results = everything()
    else:
        made = {
            "later": lambda: on_actors("later", "max_rounds=4"), "inside": lambda: on_actors("inside"),
            "rounds": lambda: {name: case(overrides) for name, overrides in CASES["rounds"].items()},
            "systems": lambda: {name: case(overrides) for name, overrides in CASES["systems"].items()},
        }[kind]()  # fmt: skip
        results = {"imported": [_imported_tree()], "experiments": made}
    if set(results["imported"]) != {tree}:
        raise SystemExit(f"hflray was imported from {results['imported']}, not from {tree}")
    del results["imported"]
    Path(out).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
