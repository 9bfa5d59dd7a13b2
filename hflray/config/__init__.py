"""The configuration of an experiment: one validated tree, which is made from a YAML file and dotted overrides only.

The defaults are those of the paper's Table I, or of ``docs/design.md, "Decisions"`` where the paper is silent. An
unknown key is an error, whose message names the most similar key.

* ``system.py``, ``decisions.py``, ``clock.py``, ``world.py``, ``training.py`` and ``learning.py`` hold the sections,
  and ``experiment.py`` the whole;
* ``files.py`` reads and writes YAML, and compares a configuration with that of a saved state;
* ``explanations.py`` lists the settings, and turns pydantic's errors into messages;
* ``pinning.py`` adds to each reference (``mine.py:Thing``) and each policy's file the hash of its content.
"""

from __future__ import annotations

from hflray.config.base import Section
from hflray.config.clock import ClockConfig, EdgeClockConfig
from hflray.config.decisions import AllocationConfig, AssignmentConfig, ClusteringBillConfig, SchedulingConfig
from hflray.config.experiment import NO_SECRET, CheckpointConfig, ExperimentConfig, TrackingConfig
from hflray.config.explanations import validate
from hflray.config.files import (
    SWEEP_ONLY,
    changed_settings,
    flatten,
    load_config,
    parse_yaml,
    read_mapping,
    set_dotted,
    split_override,
    to_yaml,
)
from hflray.config.learning import AgentConfig, LearningConfig, TeacherConfig
from hflray.config.pinning import (
    absolute_paths,
    inputs_in,
    named_settings,
    pin_sweep,
    policies_in,
    references_in,
    refuse_unpinned,
    validate_stored,
)
from hflray.config.system import BITS_PER_KB, CostConfig, FleetConfig, dbm_to_w
from hflray.config.training import COUNTED, MUTABLE, WITH_A_SPLIT, DataConfig, Kind, ModelConfig, Split, TrainingConfig
from hflray.config.world import AvailabilityConfig, BatteryConfig, EdgeFailureConfig, WorldConfig

__all__ = [
    "BITS_PER_KB", "COUNTED", "MUTABLE", "NO_SECRET", "SWEEP_ONLY", "WITH_A_SPLIT", "AgentConfig", "AllocationConfig",
    "AssignmentConfig", "AvailabilityConfig", "BatteryConfig", "CheckpointConfig", "ClockConfig",
    "ClusteringBillConfig", "CostConfig", "DataConfig", "EdgeClockConfig", "EdgeFailureConfig", "ExperimentConfig",
    "FleetConfig", "Kind", "LearningConfig", "ModelConfig", "SchedulingConfig", "Section", "Split",
    "TeacherConfig", "TrackingConfig", "TrainingConfig", "WorldConfig", "absolute_paths", "changed_settings",
    "dbm_to_w", "flatten", "inputs_in", "load_config", "named_settings", "parse_yaml", "pin_sweep",
    "policies_in", "read_mapping", "references_in", "refuse_unpinned", "set_dotted", "split_override", "to_yaml",
    "validate", "validate_stored",
]  # fmt: skip
