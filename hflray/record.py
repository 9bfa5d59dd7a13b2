"""The name that 0.2 has documented for `hflray.experiment.record`."""

from hflray.experiment.record import *
