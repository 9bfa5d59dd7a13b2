"""An edge of Algorithm 1: it combines what devices send (equation 2), at once or as it arrives. No Ray, no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hflray.aggregation import Aggregator, FloatVector, Frame, finished
from hflray.errors import DivergedError
from hflray.training.cloud import Cloud, Gather, Merge, gathered, merged, towards
from hflray.training.exchange import Lifted, Version, add_extra
from hflray.training.privacy import noised

if TYPE_CHECKING:
    from hflray.training.method import Spec


def add_up(aggregator: Aggregator, lifted: Sequence[Lifted]) -> Lifted:
    """Return what several hosts hand up together."""
    return beside(lifted)._replace(part=aggregator.combine([host.part for host in lifted]))


def beside(lifted: Sequence[Lifted]) -> Lifted:
    """Return what several hosts hand up together beside models."""
    measured = {device: row for part in lifted for device, row in part.measured.items()}
    return Lifted(None, add_extra(part.extra for part in lifted), measured)


class EdgeWorker:
    """Combines what the devices of an edge send; an actor of Ray hosts it, or this process.

    It keeps nothing, so that one worker may serve several edges. The first one also is the place of an asynchronous
    cloud. A method that `tells` returns also what hosts hand up beside models.
    """

    def finish(
        self, aggregator: Spec, frame: Frame, tells: bool, before: Version, *lifted: Lifted
    ) -> Version | tuple[Version, Lifted]:
        """Return the edge's version of the next edge iteration (equation 2), given what each host hands up.

        With fewer devices than the aggregator needs, the edge keeps its model.
        """
        version = _finished(aggregator.build(), frame, before, lifted)
        return (version, beside(lifted)) if tells else version

    def mix(
        self, aggregator: Spec, frame: Frame, tells: bool, share: float, before: Version, arrival: Lifted
    ) -> Version | tuple[Version, Lifted]:
        """Return the next version of an asynchronous edge, whose model moves towards a device's by the share α.

        Raises:
            DivergedError: the edge's model is not finite.
        """
        trained = _finished(aggregator.build(), frame, before, [arrival])
        new = towards(before.model, trained.model, share).astype(np.float32)
        if not np.isfinite(new).all():
            raise DivergedError(
                f"round {frame.round}: the model of edge {frame.index} is not finite; lower training.learning_rate or "
                "clock.edge.asynchronous.mixing"
            )
        version = Version(new, before.vectors)
        return (version, beside([arrival])) if tells else version

    def close(self, aggregator: Spec, frame: Frame, *lifted: Lifted) -> Lifted:
        """Return what all hosts hand up together after the last edge iteration, with the noise of privacy.

        The cloud takes this in place of the edge's model, if it may add up edges.
        """
        total = add_up(aggregator.build(), lifted)
        return total._replace(part=noised(total.part, frame))

    def total(self, aggregator: Spec, *lifted: Lifted) -> Lifted:
        """Return what several hosts of one node hand up together."""
        return add_up(aggregator.build(), lifted)

    def merge(
        self, merge: Merge, cloud: Cloud, trained: Version, fetched: Version, *beside: Lifted
    ) -> tuple[Version, Cloud]:
        """Return what an edge fetches after its update, and the cloud; see `hflray.training.cloud.merged`."""
        return merged(merge, cloud, trained, fetched, beside)

    def gather(
        self, gather: Gather, before: Version, residuals: Mapping[int, FloatVector], *versions: Version
    ) -> tuple[Version, Mapping[int, FloatVector]]:
        """Return the next version of a region, and what its edges keep; see `hflray.training.cloud.gathered`."""
        return gathered(gather, before, versions, residuals)


def _finished(aggregator: Aggregator, frame: Frame, before: Version, lifted: Sequence[Lifted]) -> Version:
    if frame.size < aggregator.least:
        return before
    total = noised(aggregator.combine([host.part for host in lifted]), frame)
    start = aggregator.start(len(before.model) - frame.statistics)
    model, _ = finished(aggregator, total, before.model, start, frame)
    return Version(model, before.vectors)
