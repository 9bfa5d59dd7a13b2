"""The living world: what changes around devices and edges while an experiment runs; every part is off by default.

`World` holds the parts. Decisions see its `Outlook`; what then happens to a planned round is a
`hflray.timeline.Timeline`.
"""

from __future__ import annotations

from hflray.world.availability import Availability
from hflray.world.faults import fates
from hflray.world.world import Outlook, World

__all__ = ["Availability", "Outlook", "World", "fates"]
