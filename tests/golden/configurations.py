"""Hashes of configurations: of the trials of every third shipped sweep file, with their names, and of single settings.

``python -m tests.golden.configurations`` writes ``configurations.json`` again. A hash names trials, cached fleets and
folders, so that it must never change for a setting that stays.
"""

from __future__ import annotations

import json
from pathlib import Path

from hflray.config import ExperimentConfig, load_config
from hflray.support.checksum import canonical, digest
from hflray.support.shipped import sweep_files
from hflray.sweep import expand, load_sweep

HASHES = Path(__file__).with_name("configurations.json")
PLACED = "world_edges.yaml"  # it names a trace, whose path depends on where the checkout lies
LATER = ("access.yaml", "gossip.yaml", "plan_digits.yaml", "tiers.yaml")  # sweep files that came after the hashes
OVERRIDES: tuple[tuple[str, ...], ...] = (
    (), ("seed=7",), ("max_rounds=3", "target_accuracy=0.85"), ("target={metric: r2, value: 0.4}",),
    ("target.epsilon=3", "privacy.clip=1"), ("data.name=cifar10", "data.split=official", "data.validation=100"),
    ("data.name=mine.npz", "data.root=/data"),
    ("data.partition=flwr:ShardPartitioner", "data.partition_options={a: 1}"), ("data.samples_per_device=30",),
    ("data.samples_per_device=[30, 60]", "data.preprocess=pca"),
    ("model.name=torchvision:resnet18", "model.options={weights: null}"),
    ("model={name: mlp, options: {widths: [3]}}",),
    ("fleet.num_devices=12", "fleet.num_edges=2", "fleet.edge_bandwidths_mhz=[1, 2]", "scheduling.num_scheduled=3"),
    ("fleet.max_cpu_ghz=1.5", "fleet.samples=500", "fleet.power_dbm=[10, 20]", "fleet.power_law=watt"),
    ("fleet.shadowing_db=-0.0", "fleet.slow_share=0.1", "fleet.deployment_seed=3", "fleet.dense=false"),
    ("cost.delay_weight=0.5", "cost.model_kb=100", "cost.secure_aggregation.shares=4"),
    ("scheduling={name: fedavg, options: {a: 1}}", "scheduling.num_clusters=null"),
    ("scheduling.name=vkc", "scheduling.auxiliary=global", "scheduling.clustering_bill={edge_iterations: Q, cpu: max}"),
    ("assignment={name: hfel, transfers: 5, exchanges: 6, start: random}", "assignment.once=true"),
    ("assignment={name: local_search, restarts: 2, budget_ms: 5}", "assignment.minimise=mean_edge"),
    ("assignment.policy=paper_db", "assignment.polish_ms=optimum"), ("assignment.polish_ms=2",),
    ("allocation.method=fixed_cpu", "allocation.coupling=joint"), ("allocation.method=cvxpy",),
    ("clock.edge={deadline: 1.2, first: 0.5}",), ("clock.edge={deadline_s: 3, first: 4}",),
    ("clock.edge=asynchronous",), ("clock.edge=all", "clock.cloud=synchronous"), ("clock.cloud=asynchronous",),
    ("clock.edge={asynchronous: {updates: 3, mixing: 0.4, staleness: 1.0}}",),
    ("clock.edge={asynchronous: {staleness: {hinge: [4, 2]}}}", "clock.cloud={asynchronous: {buffer: 3, mixing: 1}}"),
    ("clock.cloud={semi_synchronous: {period_s: 30, max_iterations: 4}}",),
    ("clock.cloud={asynchronous: {rule: fedat}}",),
    ("clock.cloud={asynchronous: {updates: 2, staleness: 2, weight: none}}",),
    ("world.availability={name: bernoulli, options: {probability: 0.5}}", "world.wait_s=5"),
    ("world.fading={name: rician, options: {k_db: 3}, coherence_s: 0.1}",),
    ("world.fading={name: rayleigh, known: true}",),
    ("world.dropout={rate_per_s: 0.1, noticed_after_s: 2}", "world.compute_jitter.sigma=0.3"),
    ("world.edge_failure={mtbf_s: 100, mttr_s: 10}",),
    ("world.battery={capacity_j: [5, 9], initial: 0.5, idle_w: 0.1}",),
    ("world.mobility={name: gauss_markov, options: {speed_m_per_s: 2}, links: iteration}",),
    ("world.faulty={share: 0.1, kind: sign_flip}",), ("world=",),
    ("learning.teacher={name: local_search, start: null}",),
    ("learning={features: paper, architecture: bilstm, num_edges: 5, num_scheduled: [10, 50]}",),
    ("learning={architecture: shared, num_edges: [2, 9], delay_weight: [0.1, 10], model_kb: [882, 10]}",),
    ("learning={update_every: 4, minutes: null, env_steps: 1000}",), ("learning={td: 0, ce: 1, grad_clip: null}",),
    ("agent={reward: cost, env_steps: 10, width: 8}",), ("agent.grad_clip=null", "agent.epochs=2"),
    ("training={local_iterations: 2, edge_iterations: 3, batch_size: 8, learning_rate: 0.1}",),
    ("training.rule={name: fedprox, options: {mu: 0.1}}", "training.momentum=0.9", "training.weight_decay=1e-4"),
    ("training.learning_rate_decay={factor: 0.9, every: step}", "training.clip=2", "training.measure_updates=true"),
    ("training={loss: mse, local_iteration: step, buffers: local, precision: bf16, kernel: fused}",),
    ("training={device: cuda, precision: tf32, cuda_graph: true, kernel: batched}",),
    ("training={backend: serial, devices_per_actor: 4, threads: 2}",), ("training.num_actors=2",),
    ("aggregation.edge={name: krum, options: {faulty: 1}}", "aggregation.weights=uniform"),
    ("aggregation.cloud.name=fedadam", "compression.device={name: qsgd, options: {levels: 4}}"),
    ("compression.edge={name: top_k, options: {share: 0.1}}", "privacy={clip: 1, noise_multiplier: 2, delta: 1e-6}"),
    ("checkpoint.every=0", "tracking={uri: null, experiment: mine, sinks: [csv]}"), ("tracking.sinks=[]",),
)  # fmt: skip


def hash_of(config: ExperimentConfig) -> str:
    """Return the SHA-256 of a configuration as it is written."""
    return digest(canonical(config.model_dump(mode="json")))[:24]


def hashes() -> dict[str, str]:
    """Return the hash of each configuration."""
    of_settings = {" ".join(overrides): hash_of(load_config(None, list(overrides))) for overrides in OVERRIDES}
    shipped = [path for path in sweep_files() if path.name not in LATER]
    of_trials = {
        path.name: digest(json.dumps([[trial.name, hash_of(trial.config)] for trial in trials]).encode())[:24]
        for path, trials in ((path, expand(load_sweep(path))) for path in shipped[::3] if path.name != PLACED)
    }
    return of_settings | of_trials


if __name__ == "__main__":
    HASHES.write_text(json.dumps(hashes(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
