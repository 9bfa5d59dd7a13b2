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
from pathlib import Path
from typing import Any

# Settings that would otherwise be measured on this machine are fixed: kernel, threads, number of actors.
SMALL = (
    "max_rounds=2",
    "data.name=digits",
    "fleet.num_devices=12",
    "fleet.num_edges=3",
    "scheduling.num_scheduled=6",
    "scheduling.num_clusters=4",
    "training.local_iterations=2",
    "training.edge_iterations=2",
    "training.batch_size=16",
    "training.kernel=channels_last",
    "training.threads=1",
    "training.backend=serial",
)
RAY = ("training.backend=ray", "training.num_actors=2")
# Pairs of scheduler and assigner, not their full product. One deadline for all edges (`joint`) is used only where the
# assigner and Algorithm 2 do not depend on it: since issue 13 both take it into account, which changed their answers.
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    f"{scheduler} {assigner} {coupling}{' actors' if actors else ''}": (
        f"scheduling.name={scheduler}",
        f"assignment.name={assigner}",
        f"allocation.coupling={coupling}",
        *(RAY if actors else ()),
        *more,
    )
    for scheduler, assigner, coupling, actors, more in (
        ("ikc", "d3qn", "per_edge", True, ()),
        ("ikc", "hfel", "per_edge", False, ("data.preprocess=pca",)),
        ("ikc", "local_search", "per_edge", True, ("training.local_iteration=full_batch",)),
        ("vkc", "d3qn", "per_edge", False, ("assignment.polish_ms=optimum",)),
        ("vkc", "hfel", "per_edge", True, ("seed=3",)),
        ("vkc", "local_search", "per_edge", False, ("fleet.edge_bandwidths_mhz=[0.5, 1, 3]",)),
        ("fedavg", "d3qn", "joint", True, ("data.partition=dirichlet",)),
        ("fedavg", "geographic", "joint", False, ()),
        ("fedavg", "hfel", "per_edge", False, ("cost.delay_weight=0.3", "cost.model_kb=882")),
        ("fedavg", "local_search", "per_edge", True, ("training.kernel=eager", "data.partition=iid")),
    )
}
STUDY = ("fleet.num_devices=30", "fleet.num_edges=4", "scheduling.num_scheduled=12", "scheduling.num_clusters=4")
STUDIES: dict[str, tuple[str, ...]] = {
    "d3qn joint": ("assignment.name=d3qn", "allocation.coupling=joint"),
    "d3qn polished": ("assignment.name=d3qn", "assignment.polish_ms=optimum"),
    "hfel": ("assignment.name=hfel", "assignment.exchanges=100"),
    "local_search": ("assignment.name=local_search", "assignment.restarts=2"),
    "best_gain joint": ("assignment.name=best_gain", "allocation.coupling=joint", "seed=5"),
    "geographic cvxpy": ("assignment.name=geographic", "allocation.method=cvxpy", "max_rounds=1"),
}
LEARNING = (
    "scheduling.num_scheduled=8",
    "fleet.num_edges=3",
    "learning.fleets=12",
    "learning.evaluation_fleets=3",
    "learning.hidden=8",
    "learning.width=8",
    "learning.minutes=null",
    "learning.env_steps=600",
    "learning.evaluate_every=300",
    "learning.train_batch=32",
    "learning.learning_starts=100",
    "learning.target_update_steps=150",
    "learning.epsilon_steps=400",
    "learning.buffer_capacity=500",
)
TRAININGS: dict[str, tuple[str, ...]] = {
    "paper": ("learning.features=paper", "learning.double_q=false", "learning.teacher.start=geographic"),
    "shared": ("learning.architecture=shared", "learning.num_edges=[2, 4]", "learning.num_scheduled=[2, 9]",
               "learning.ce=1", "learning.reward=cost"),
}  # fmt: skip
LEARNING_TIMES = ("wall/learn_s", "assigner/steps_per_s")


def experiment(*overrides: str, clusters: list[int] | None = None) -> dict[str, Any]:
    """Return all rounds of an experiment, its clusters and the bill of its clustering.

    Args:
        *overrides: overrides of the configuration, applied after `SMALL`.
        clusters: clusters to use instead of trained ones.
    """
    import numpy as np

    from hflray.config import load_config
    from hflray.experiment import Experiment

    rounds = []
    with Experiment(load_config(None, [*SMALL, *overrides]), cpus=2) as run:
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

    config = load_config(None, ["max_rounds=3", *STUDY, *overrides])
    return [{k: v for k, v in fleet.metrics().items() if not k.startswith("wall/")} for fleet in run_study(config)]


def clustering(*overrides: str) -> dict[str, Any]:
    """Run the task ``clustering`` and return the clusters, their ARI and the bill."""
    from hflray.config import load_config
    from hflray.experiment import Experiment

    with Experiment(load_config(None, [*SMALL, *overrides]), cpus=2) as run:
        return {"clusters": run.cluster().tolist(), "summary": run.summary()}


def training(folder: str, *overrides: str) -> dict[str, Any]:
    """Run the task ``train_assigner``; return its curve, the policy's hash and specification, and its fleets' keys."""
    from hflray.assignment.d3qn import load_policy
    from hflray.config import load_config
    from hflray.rl.fleets import FleetSpec
    from hflray.rl.session import AssignerTraining

    config = load_config(None, [*LEARNING, f"learning.cache={folder}/fleets", *overrides])
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
    return {"points": points, "policy": digest.hexdigest(), "spec": network.spec.to_dict(), "fleets": keys}


def everything() -> dict[str, Any]:
    """Return the results of all cases, computed in one process with one Ray."""
    import ray

    _start()
    try:
        results: dict[str, Any] = {"imported": [_imported_tree(), ray.get(ray.remote(_imported_tree).remote())]}
        results["experiments"] = {name: experiment(*overrides) for name, overrides in EXPERIMENTS.items()}
        results["studies"] = {name: study(*overrides) for name, overrides in STUDIES.items()}
        names = ("ikc", "vkc")
        results["clusterings"] = {name: clustering(f"scheduling.name={name}") for name in names}
        results["trainings"] = {}
        for name, overrides in TRAININGS.items():
            with tempfile.TemporaryDirectory() as folder:
                results["trainings"][name] = training(folder, *overrides)
    finally:
        ray.shutdown()
    return results


# Schedulers that learn from the delays and losses that they observe.
LATER: dict[str, tuple[str, ...]] = {
    f"{scheduler}{' actors' if actors else ''}": (f"scheduling.name={scheduler}", *(RAY if actors else ()), *more)
    for scheduler, actors, more in (
        ("oort", True, ("assignment.name=hfel",)),
        ("oort", False, ("assignment.name=d3qn", "allocation.method=equal")),
        ("ucb", True, ("assignment.name=d3qn", "allocation.method=equal")),
        ("ucb", False, ("assignment.name=local_search",)),
    )
}


def later() -> dict[str, Any]:
    """Return the results of `LATER`, computed in one process with one Ray."""
    import ray

    _start()
    try:
        results = {name: experiment("max_rounds=4", *overrides) for name, overrides in LATER.items()}
    finally:
        ray.shutdown()
    return {"imported": [_imported_tree()], "experiments": results}


# What happens inside a round: local rule, aggregators, compressors, clock, kernel and network, of which issue 60 builds
# one program. Each is computed by early commits, with three rounds, in this process but for those with actors.
UNIFORM = ("aggregation.weights=uniform",)
INSIDE: dict[str, tuple[str, ...]] = {
    name: ("max_rounds=3", "scheduling.name=fedavg", "assignment.name=geographic", "allocation.method=equal", *settings)
    for name, settings in {
        "fused": ("training.kernel=fused",),
        "fused bf16": ("training.kernel=fused_bf16", "training.precision=bf16"),
        "eager bf16": ("training.kernel=eager", "training.precision=bf16"),
        "mlp actors": ("model.name=mlp", "model.options={hidden: [16]}", "training.kernel=eager", *RAY),
        "lenet fused": ("model.name=lenet", "training.kernel=fused"),
        "lenet eager": ("model.name=lenet", "training.kernel=eager"),
        "resnet8 batch": ("model.name=resnet8", "model.options={norm: batch, width: 8}", "training.kernel=eager"),
        "resnet8 local": ("model.name=resnet8", "model.options={norm: batch, width: 8}", "training.buffers=local"),
        "logistic": ("model.name=logistic", "training.kernel=fused", "training.momentum=0.9"),
        "momentum": ("training.momentum=0.9", "training.weight_decay=0.01", "training.clip=0.5"),
        "decay": ("training.learning_rate_decay={factor: 0.9, every: step}", "training.kernel=fused"),
        "fedprox": ("training.rule.name=fedprox", "training.kernel=fused"),
        "fedprox fedadam": ("training.rule.name=fedprox", "aggregation.cloud.name=fedadam", *RAY),
        "scaffold": ("training.rule.name=scaffold",),
        "scaffold actors": ("training.rule.name=scaffold", "training.kernel=fused", "training.momentum=0.5", *RAY),
        "scaffold top_k": ("training.rule.name=scaffold", "compression.device={name: top_k, options: {share: 0.1}}"),
        "feddyn": ("training.rule.name=feddyn", *UNIFORM),
        "feddyn actors": ("training.rule.name=feddyn", *UNIFORM, *RAY, "training.weight_decay=0.01"),
        "fednova": ("training.rule.name=fednova",),
        "fednova actors": ("training.rule.name=fednova", "training.momentum=0.9", *RAY),
        "mtgc": ("training.rule.name=mtgc",),
        "mtgc actors": (
            "training.rule.name=mtgc", "training.learning_rate_decay={factor: 0.9, every: iteration}", *RAY,
        ),
        "mtgc devices": ("training.rule={name: mtgc, options: {corrections: devices}}",),
        "median": ("aggregation.edge.name=median",),
        "trimmed_mean": ("aggregation.edge.name=trimmed_mean", "aggregation.cloud.name=fedavgm", *RAY),
        "krum": ("aggregation.edge={name: krum, options: {f: 0}}", "fleet.num_edges=2", "assignment.name=even_gain"),
        "multi_krum": (
            "aggregation.edge={name: multi_krum, options: {f: 0}}", "aggregation.cloud.name=fedyogi",
            "fleet.num_edges=2", "assignment.name=even_gain",
        ),
        "geometric_median": ("aggregation.edge.name=geometric_median", "aggregation.cloud.name=fedadagrad"),
        "qsgd": ("compression.device.name=qsgd", "compression.edge.name=qsgd"),
        "sign": ("compression.device.name=sign", "compression.edge.name=sign", *RAY),
        "top_k": ("compression.device.name=top_k", "compression.edge.name=top_k", "training.rule.name=mtgc"),
        "privacy": ("privacy={clip: 1.0, noise_multiplier: 0.1}", *UNIFORM),
        "privacy actors": ("privacy={clip: 1.0, noise_multiplier: 0.1}", *UNIFORM, "training.rule.name=fedprox", *RAY),
        "faulty": ("world.faulty={share: 0.3, kind: sign_flip}", "aggregation.edge.name=median"),
        "deadline": ("clock.edge.deadline=1.0", "world.compute_jitter.sigma=0.3", "training.rule.name=scaffold"),
        "semi": ("clock.cloud={semi_synchronous: {period_s: 3}}", "training.rule.name=mtgc"),
        "fedasync": ("clock.cloud=asynchronous", "training.rule.name=fedprox"),
        "fedasync scaffold": ("clock.cloud=asynchronous", "training.rule.name=scaffold", *RAY),
        "fedbuff": ("clock.cloud={asynchronous: {buffer: 2, updates: 3}}", "compression.edge.name=sign"),
        "fedat": ("clock.cloud={asynchronous: {rule: fedat, updates: 2}}", "compression.device.name=top_k", *RAY),
        "edges": ("clock.edge=asynchronous",),
        "edges actors": ("clock.edge=asynchronous", "compression.device.name=sign", "training.momentum=0.9", *RAY),
        "edges fedasync": (
            "clock.edge={asynchronous: {updates: 3}}", "clock.cloud={asynchronous: {updates: 4, staleness: 1}}",
        ),
        "edges fedbuff": ("clock.edge=asynchronous", "clock.cloud={asynchronous: {buffer: 2}}", *RAY),
        "edges fedat": ("clock.edge=asynchronous", "clock.cloud={asynchronous: {rule: fedat}}"),
    }.items()
}  # fmt: skip


def inside() -> dict[str, Any]:
    """Return the results of `INSIDE`, computed in one process with one Ray."""
    import ray

    _start()
    try:
        results = {name: experiment(*overrides) for name, overrides in INSIDE.items()}
    finally:
        ray.shutdown()
    return {"imported": [_imported_tree()], "experiments": results}


# Bills that depend on the configuration alone: FedAvg draws devices independently of weights, and IKC and VKC get fixed
# clusters. A local iteration trains one sample, because the bill does not depend on how well a model is trained.
FIXED_CLUSTERS = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 2]
UNTRAINED = ("training.local_iteration=step", "training.batch_size=1", "training.edge_iterations=1")
BILLS: dict[str, tuple[str, ...]] = {
    "fedavg hfel per_edge": ("scheduling.name=fedavg", "assignment.name=hfel"),
    "fedavg search per_edge": ("scheduling.name=fedavg", "assignment.name=local_search"),
    "fedavg d3qn joint": ("scheduling.name=fedavg", "assignment.name=d3qn", "allocation.coupling=joint"),
    "fedavg geographic heavy": ("scheduling.name=fedavg", "assignment.name=geographic", "cost.model_kb=882", "seed=2"),
    "ikc d3qn per_edge": ("scheduling.name=ikc", "assignment.name=d3qn"),
    "vkc best_gain joint": ("scheduling.name=vkc", "assignment.name=best_gain", "allocation.coupling=joint"),
}  # fmt: skip
OF_TRAINING = ("accuracy", "test_loss")


def bills() -> dict[str, Any]:
    """Return bills and schedules that do not depend on trained weights, which all machines reproduce to 1e-12."""
    results: dict[str, Any] = {"experiments": {}, "clusterings": {}}
    for name, overrides in BILLS.items():
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
        name: study(*STUDIES[name], *one_fleet) for name in ("d3qn polished", "hfel", "best_gain joint")
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


def rounds() -> dict[str, Any]:
    """Return the results of `tests.golden.rounds`, which lies beside this file."""
    import rounds as cases

    return {"imported": [_imported_tree()], "experiments": cases.rounds()}


def systems() -> dict[str, Any]:
    """Return the results of `tests.golden.systems`, which lies beside this file."""
    import systems as cases

    return {"imported": [_imported_tree()], "experiments": cases.systems()}


def main(tree: str, kind: str, out: str) -> None:
    """Write the results of `tree` as JSON, which keeps every bit of a float; `kind` is as above."""
    if kind == "bills":
        results = {"imported": [_imported_tree()], **bills()}
    else:
        kinds = {"everything": everything, "later": later, "inside": inside, "rounds": rounds, "systems": systems}
        results = kinds[kind]()
    if set(results["imported"]) != {tree}:
        raise SystemExit(f"hflray was imported from {results['imported']}, not from {tree}")
    del results["imported"]
    Path(out).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
