"""The limits of this process that Ray cannot live with, which are refused before Ray fails with a dump of its own."""

from __future__ import annotations

import os
import resource

from hflray.errors import ConfigError

# What Ray maps into a process, measured on two CPUs: an object store of 2 GiB, libraries, and stacks and heaps of
# threads, which grow with the CPUs.
MAPPED_BYTES, MAPPED_BYTES_OF_A_CPU = 4 * 2**30, 2**28


def check_address_space(without_ray: bool = False) -> None:
    """Raise ConfigError if ``ulimit -v`` leaves a process less address space than Ray maps, unless Ray is not used."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    needed = MAPPED_BYTES + MAPPED_BYTES_OF_A_CPU * (os.cpu_count() or 1)
    if limit != resource.RLIM_INFINITY and limit < needed and not without_ray:
        raise ConfigError(
            f"ulimit -v: got {limit // 1024:,} KiB ({limit / 2**30:.1f} GiB) of address space for a process, and one "
            f"that uses Ray maps {needed / 2**30:.1f} GiB; accepted: {needed // 1024:,} or more, or unlimited; raise it"
        )
