"""`hflray.tune.memory`: Tune's results do not stay in the driver's memory after they have been read."""

from __future__ import annotations

from ray.util.debug import log_once

from hflray.tune.memory import drop_read, keep_no_rounds


class Counter:
    def one(self) -> int:
        return 1


def test_the_results_of_a_trials_calls_are_dropped_when_they_have_been_read(ray_session) -> None:
    from ray.air.execution import FixedResourceManager, ResourceRequest
    from ray.air.execution._internal.actor_manager import RayActorManager

    keep_no_rounds()
    step = RayActorManager.next
    keep_no_rounds()
    assert RayActorManager.next is step  # it is extended once
    manager = RayActorManager(resource_manager=FixedResourceManager({"CPU": 1}))
    seen: list[int] = []
    actor = manager.add_actor(Counter, kwargs={}, resource_request=ResourceRequest([{"CPU": 1}]))
    while not manager.is_actor_started(actor):
        manager.next(timeout=10)
    for number in range(1, 4):
        manager.schedule_actor_task(actor, "one", on_result=lambda tracked, value: seen.append(value))
        assert len(manager._tracked_actors_to_task_futures[actor]) == 1  # the call whose result is awaited
        while len(seen) < number:
            manager.next(timeout=10)
        assert not manager._tracked_actors_to_task_futures[actor]
    manager.remove_actor(actor, kill=True)
    manager.next(timeout=10)


def test_log_lines_are_not_remembered() -> None:
    keep_no_rounds()
    assert not log_once("a line that was never logged")


def test_a_manager_of_another_ray_is_left_as_it_is() -> None:
    drop_read(object())
