"""Turn floating-car data of SUMO (an XML file of ``--fcd-output``) into a trace of mobility.

    python -m hflray.world.sumo fcd.xml trace.csv [--devices N] [--unit auto]

Vehicles and persons become devices in the order in which they appear, and places are shifted so that the smallest x and
y are 0. With ``--fcd-output.geo``, SUMO writes longitude and latitude; they become metres. The command prints the side
of the area that holds all places.
"""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import numpy as np
import typer

from hflray.errors import ConfigError
from hflray.support.arrays import FloatArray
from hflray.support.files import write
from hflray.support.terminal.app import HELP, exit_code, single

EARTH_RADIUS_M = 6_371_000.0
GEO = 'fcd-output.geo value="true"'  # in the comment at the head of a file, which has SUMO's options
app = single()


class Unit(StrEnum):
    """The unit of the places in a file.

    Without the comment at its head, a file is taken to be in degrees if its places could be, and if as metres they
    would all lie within one metre.
    """

    AUTO = "auto"
    METRES = "metres"
    DEGREES = "degrees"


def metres_of(latitude: FloatArray, longitude: FloatArray) -> FloatArray:
    """Return places in metres east and north of the smallest longitude and latitude, (n, 2).

    The arguments are degrees, (n,). A degree of latitude is 111.19 km, and one of longitude is shorter by the cosine of
    the middle latitude, which is right for a map of some hundred kilometres.
    """
    degree_m = EARTH_RADIUS_M * math.pi / 180
    middle = math.radians((latitude.min() + latitude.max()) / 2)
    east = (longitude - longitude.min()) * degree_m * math.cos(middle)
    return np.stack([east, (latitude - latitude.min()) * degree_m], axis=1)


def convert(source: Path, target: Path, devices: int | None = None, unit: Unit = Unit.AUTO) -> tuple[int, float]:
    """Write the trace; return the number of devices and the side of the area that holds all places, m.

    Args:
        source: the XML file.
        target: the CSV file, with columns ``time_s,device,x_m,y_m``.
        devices: later ones than the first `devices` are left out; None: none is.
        unit: the unit of the places.

    Raises:
        ConfigError: the file is not of this form, or degrees are none.
    """
    times, members, places = list[float](), list[int](), list[tuple[float, float]]()
    numbers: dict[str, int] = {}
    geo = False
    place = "its head"
    try:
        for event, step in ElementTree.iterparse(source, events=("comment", "end")):
            if event == "comment":
                geo = geo or GEO in (step.text or "")
            if event == "comment" or step.tag != "timestep":
                continue
            place = f"the timestep after {times[-1]:g} s" if times else "the first timestep"
            time_s = _number(step, "time")
            if times and time_s < times[-1]:
                raise ValueError(f"the time {time_s:g} s comes after {times[-1]:g} s")
            for thing in step:
                place = f"time {time_s:g} s, {thing.tag} {thing.attrib.get('id', '?')}"
                number = numbers.setdefault(thing.attrib["id"], len(numbers))
                if devices is None or number < devices:
                    times.append(time_s)
                    members.append(number)
                    places.append((_number(thing, "x"), _number(thing, "y")))
            step.clear()
    except (OSError, ElementTree.ParseError, KeyError, ValueError) as error:
        reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"{source}: not floating-car data of SUMO ({place}: {reason}); give a file of --fcd-output"
        ) from error
    if not places:
        raise ConfigError(f"{source}: it has no vehicle; give a file of --fcd-output")
    x, y = np.array(places).T
    in_range = bool((abs(x) <= 180).all() and (abs(y) <= 90).all())
    side = max(np.ptp(x), np.ptp(y))
    if unit is Unit.DEGREES and not in_range:
        raise ConfigError(
            f"{source}: x lies between {x.min():g} and {x.max():g}, y between {y.min():g} and {y.max():g}, which are "
            "no longitudes and latitudes; leave --unit degrees out"
        )
    if unit is Unit.DEGREES or (unit is Unit.AUTO and in_range and (geo or 0 < side < 1)):
        shifted = metres_of(latitude=y, longitude=x)
    else:
        shifted = np.stack([x - x.min(), y - y.min()], axis=1)
    rows = zip(times, members, shifted.tolist(), strict=True)
    lines = [f"{time_s:.15g},{number},{east:.3f},{north:.3f}" for time_s, number, (east, north) in rows]
    write(target, "\n".join(["time_s,device,x_m,y_m", *lines, ""]), durable=True)
    return 1 + max(members), float(shifted.max())


def _number(element: ElementTree.Element, name: str) -> float:
    number = float(element.attrib[name])
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}; accepted: a finite number")
    return number


@app.command(context_settings=HELP)
def trace(
    source: Annotated[Path, typer.Argument(help="The XML file of --fcd-output.")],
    target: Annotated[Path, typer.Argument(help="The CSV file to write.")],
    devices: Annotated[int | None, typer.Option(min=1, help="The largest number of devices.")] = None,
    unit: Annotated[Unit, typer.Option(help="The unit of the places: degrees with --fcd-output.geo, else metres; auto "
                                       "looks at the file's head and places.")] = Unit.AUTO,
) -> None:  # fmt: skip
    """Turn floating-car data of SUMO into a trace of mobility."""
    count, side_m = convert(source, target, devices, unit)
    # The side is rounded up to the next 0.1 m, because no place may be outside the area.
    area_km = math.floor(10 * side_m + 1) / 1e4
    print(f"{count} devices; set fleet.num_devices to at least {count} and fleet.area_km to at least {area_km:.4f}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    return exit_code(app, arguments, "python -m hflray.world.sumo")


if __name__ == "__main__":
    raise SystemExit(main())
