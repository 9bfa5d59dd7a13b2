"""What Ray Tune gives a trial to begin with: ``{"trial": {"name", "values", "last", "adopted"}}``.

Tune is started anew at each start of a sweep, so that this is all that a trial needs beside the sweep's file, its
journal and its checkpoints.
"""

from __future__ import annotations

TRIAL = "trial"  # the key of the following in Tune's parameters of a trial
NAME = "name"  # the trial's name
VALUES = "values"  # the swept values by dotted key
LAST = "last"  # the last round in the trial's journal, 0 for none; no later checkpoint is used
ADOPTED = "adopted"  # [donor, round]: the member of a population whose state after that round is the trial's; or None
