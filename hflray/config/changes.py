"""The settings that differ between a configuration and the one with which a state was saved."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hflray.config.experiment import ExperimentConfig
from hflray.config.files import flatten
from hflray.errors import ConfigError

# Settings that may differ from a loaded state's. They decide when to stop and where to run, and do not change results.
MAY_CHANGE = ("max_rounds", "target_accuracy", "target", "tracking", "checkpoint", "data.root", "training.backend",
              "training.num_actors", "training.devices_per_actor", "training.cuda_graph")  # fmt: skip


def changed_settings(
    config: ExperimentConfig, saved: ExperimentConfig, may_change: Collection[str]
) -> dict[str, list[Any]]:
    """Return the settings among `may_change` that differ, {key: [saved value, new value]}.

    Raises:
        ConfigError: another setting that affects results differs.
    """
    new, old = flatten(config.model_dump(mode="json")), flatten(saved.model_dump(mode="json"))
    changed = {}
    for key in new:
        # Of two functions with one name, the second would go on under the name of the first.
        renamed = key != "target.metric" or config.target.name != saved.target.name
        free = renamed and any(key == name or key.startswith(f"{name}.") for name in MAY_CHANGE)
        if new[key] == old.get(key) or free:
            continue
        if key not in may_change:
            raise ConfigError(
                f"{key}: the saved state was made with {old.get(key)!r}, this configuration has {new[key]!r}; "
                "resume with the same configuration, or start anew"
            )
        changed[key] = [old.get(key), new[key]]
    return changed
