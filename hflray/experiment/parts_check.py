"""A check of an experiment's parts before it starts, so that ``--dry-run`` refuses what would fail in round 1.

Only a user's own parts are tried, and on copies. Round 1 is planned for a scheduler, an assigner or an observer, and
for any physics but the paper's, a download and limits. One step is trained for a rule, an aggregator or a compressor.
What they return is checked where it enters, as in any round.
"""

from __future__ import annotations

import numpy as np

from hflray import metrics, registry
from hflray.allocation import is_general
from hflray.assignment import configured_assigner
from hflray.cost import Schedule
from hflray.errors import DivergedError
from hflray.experiment.experiment import Experiment
from hflray.experiment.observers import Conditions, UsersObserver
from hflray.experiment.planning import Planner
from hflray.experiment.record import PlannedRound
from hflray.experiment.target import Scores
from hflray.models import auxiliary_problem
from hflray.scheduling import Scheduler, configured_scheduler, scheduler_class
from hflray.support.contract import Contract, is_ours
from hflray.training.hierarchy import SerialHierarchy
from hflray.training.job import LocalJob
from hflray.training.network_check import check_network
from hflray.training.rules.own import OwnTraining
from hflray.training.state import RoundTask

_checked: set[tuple[int, str]] = set()  # configurations without their seed, so that a sweep's seeds need one trial


def check_parts(experiment: Experiment) -> None:
    """Try the parts of an experiment that are a user's own; see the module.

    Raises:
        HflrayError: a part does not keep its contract; the message is one line.
    """
    key = registry.revision(), experiment.config.model_copy(update={"seed": 0}).model_dump_json()
    if key in _checked:
        return
    experiment.world.try_parts()
    _check_auxiliary(experiment)
    _check_decisions(experiment)
    _check_observers(experiment)
    _check_method(experiment)
    _checked.add(key)


def _check_auxiliary(experiment: Experiment) -> None:
    """Try the network that Algorithm 2 trains, if it is not one of ours."""
    config = experiment.config
    name = config.scheduling.auxiliary
    if scheduler_class(config.scheduling.name).auxiliary is not None and name not in (None, "mini", "global"):
        problem = auxiliary_problem(experiment.problem, name)
        data = experiment.scenario.device_data()
        check_network(problem, config.training, config.seed, data, "scheduling.auxiliary")


def _check_decisions(experiment: Experiment) -> None:
    """Plan round 1 with a scheduler, an assigner or a physics of their own, and save the scheduler's state."""
    config, made = experiment.config, scheduler_class(experiment.config.scheduling.name)
    is_planned = is_general(experiment.scenario.fleet, experiment.work)
    if is_planned or not is_ours(made) or not is_ours(experiment.assigner):
        plan, scheduler, again = _planned(experiment)
        if plan.conditions.get(metrics.ROUND_DROPPED) and not len(plan.schedule):
            limits = experiment.work.limits
            caps = {"device_energy_j": limits.device_energy_j, "device_delay_s": limits.device_delay_s}
            experiment.scenario.notes.append(
                f"allocation.limits: {', '.join(f'{name} = {cap:g}' for name, cap in caps.items() if cap is not None)} "
                f"leave out every device of round 1, so that it trains nothing and takes world.wait_s = "
                f"{config.world.wait_s:g} s"
            )
    if not is_ours(made):
        contract = Contract.of("scheduling.name", config.scheduling.name, "")
        again.load_state_dict(contract.state(scheduler.state_dict()))


def _planned(experiment: Experiment) -> tuple[PlannedRound, Scheduler, Scheduler]:
    """Plan round 1; return the plan, the scheduler that has planned it, and another one."""
    config, made = experiment.config, scheduler_class(experiment.config.scheduling.name)
    count = config.fleet.num_devices
    clusters = None if made.auxiliary is None else np.arange(count) % (config.scheduling.num_clusters or 1)
    scheduler, again = (configured_scheduler(config, clusters) for _ in range(2))
    planner = Planner(
        config, experiment.scenario, experiment.work, configured_assigner(config), experiment.allocate,
        lambda devices: np.ones(len(devices)), experiment.turns,
    )  # fmt: skip
    plan, _ = planner.plan(1, scheduler, experiment.world, experiment.history, None, experiment.under_way)
    return plan, scheduler, again


def _check_observers(experiment: Experiment) -> None:
    """Tell new ones of the user's observers of a round that did not train, and restore their states."""
    if not experiment.config.observers:
        return
    plan = _planned(experiment)[0]
    wall = plan.wall | {"train_s": 0.0, "evaluate_s": 0.0}
    record = experiment.record_of(plan, experiment.global_model, Scores(0.5, 1.0), plan.conditions, wall)
    ours = [observer for observer in experiment.observers if isinstance(observer, Conditions)]
    for observer in (*ours, *UsersObserver.all_of(experiment.config)):
        observer.before(plan)
        if observer.stops():
            raise observer.too_early()
        record = observer.logged(record)
        observer.stops()
        observer.load_state_dict(observer.state_dict())


def _check_method(experiment: Experiment) -> None:
    """Train one step of a few devices of two edges with the rule, the aggregators and the compressors."""
    config, method = experiment.config, experiment.backend.method
    parts = method.parts()
    rule = parts.rule.train if isinstance(parts.rule, OwnTraining) else parts.rule
    if all(map(is_ours, (rule, parts.edge, parts.cloud, parts.device_compressor, parts.edge_compressor))):
        return
    job = LocalJob(
        experiment.problem, config.seed, local_iterations=1, batch_size=config.training.batch_size,
        learning_rate=config.training.learning_rate, local_iteration="step", kernel="eager", method=method,
    )  # fmt: skip
    edges = min(config.fleet.num_edges, max(2, parts.cloud.least))
    devices = np.arange(min(config.fleet.num_devices, edges * max(2, parts.edge.least)))
    task = RoundTask(1, Schedule(devices, devices % edges), np.ones((1, len(devices)), dtype=bool))
    hierarchy = SerialHierarchy(job, experiment.scenario.device_data(), config.fleet.num_edges)
    try:
        hierarchy.train_round(task, experiment.training)
    except DivergedError as error:
        if rule is parts.rule:
            raise
        accepted = "a function that leaves finite weights, no larger than the sums of models hold"
        raise Contract.of("training.rule.name", rule, accepted).error(
            f"from one step: {str(error).rpartition('; ')[0]}"
        ) from error
