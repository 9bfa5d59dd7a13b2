"""One experiment as one validated tree: YAML and dotted overrides in, nothing else.

Defaults are Table I of the paper where it has the entry, and the decisions of the design's section 5 where the paper
is silent. Unknown keys are errors that name the nearest known one.

* ``system.py``, ``decisions.py``, ``training.py`` and ``learning.py`` hold the sections, ``experiment.py`` the whole;
* ``files.py`` reads and writes YAML;
* ``explanations.py`` turns mistakes into messages.
"""

from __future__ import annotations

from hflray.config.base import IntRange, Range, Section
from hflray.config.decisions import AllocationConfig, AssignmentConfig, ClusteringBillConfig, SchedulingConfig
from hflray.config.experiment import CheckpointConfig, ExperimentConfig, TrackingConfig
from hflray.config.explanations import explain, validate
from hflray.config.files import flatten, load_config, parse_yaml, read_mapping, set_dotted, split_override, to_yaml
from hflray.config.learning import LearningConfig, TeacherConfig
from hflray.config.system import BITS_PER_KB, CostConfig, FleetConfig, dbm_to_w
from hflray.config.training import MUTABLE, DataConfig, TrainingConfig

__all__ = [
    "BITS_PER_KB",
    "MUTABLE",
    "AllocationConfig",
    "AssignmentConfig",
    "CheckpointConfig",
    "ClusteringBillConfig",
    "CostConfig",
    "DataConfig",
    "ExperimentConfig",
    "FleetConfig",
    "IntRange",
    "LearningConfig",
    "Range",
    "SchedulingConfig",
    "Section",
    "TeacherConfig",
    "TrackingConfig",
    "TrainingConfig",
    "dbm_to_w",
    "explain",
    "flatten",
    "load_config",
    "parse_yaml",
    "read_mapping",
    "set_dotted",
    "split_override",
    "to_yaml",
    "validate",
]
