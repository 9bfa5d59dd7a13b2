"""Turn floating-car data of SUMO (an XML file of ``--fcd-output``) into a trace of mobility.

    python -m hflray.world.sumo fcd.xml trace.csv [--devices N]

Vehicles and persons become devices in the order in which they appear, and places are shifted so that the smallest x and
y are 0. The command prints the side of the area that holds all places.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from xml.etree import ElementTree

from hflray.errors import ConfigError, HflrayError
from hflray.support.files import write


def convert(source: Path, target: Path, devices: int | None = None) -> tuple[int, float]:
    """Write the trace; return the number of devices and the side of the area that holds all places, m.

    Args:
        source: the XML file.
        target: the CSV file, with columns ``time_s,device,x_m,y_m``.
        devices: later ones than the first `devices` are left out; None: none is.

    Raises:
        ConfigError: the file is not of this form.
    """
    rows: list[tuple[float, int, float, float]] = []
    numbers: dict[str, int] = {}
    try:
        for _, step in ElementTree.iterparse(source):
            if step.tag != "timestep":
                continue
            for thing in step:
                number = numbers.setdefault(thing.attrib["id"], len(numbers))
                if devices is None or number < devices:
                    place = (float(thing.attrib["x"]), float(thing.attrib["y"]))
                    rows.append((float(step.attrib["time"]), number, *place))
            step.clear()
    except (OSError, ElementTree.ParseError, KeyError, ValueError) as error:
        raise ConfigError(
            f"{source}: not floating-car data of SUMO ({error!r}); give a file of --fcd-output"
        ) from error
    if not rows:
        raise ConfigError(f"{source}: it has no vehicle; give a file of --fcd-output")
    left, low = min(row[2] for row in rows), min(row[3] for row in rows)
    side_m = max(max(row[2] for row in rows) - left, max(row[3] for row in rows) - low)
    lines = [f"{time:.15g},{number},{x - left:.3f},{y - low:.3f}" for time, number, x, y in rows]
    write(target, "\n".join(["time_s,device,x_m,y_m", *lines, ""]), durable=True)
    return 1 + max(row[1] for row in rows), side_m


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Turn floating-car data of SUMO into a trace of mobility.")
    parser.add_argument("source", type=Path, help="the XML file")
    parser.add_argument("target", type=Path, help="the CSV file to write")
    parser.add_argument("--devices", type=int, help="the largest number of devices")
    arguments = parser.parse_args()
    try:
        count, side_m = convert(arguments.source, arguments.target, arguments.devices)
    except HflrayError as error:
        raise SystemExit(str(error)) from None
    # The side is rounded up to the next 0.1 m, because no place may be outside the area.
    area_km = math.floor(10 * side_m + 1) / 1e4
    print(f"{count} devices; set fleet.num_devices to at least {count} and fleet.area_km to at least {area_km:.4f}")


if __name__ == "__main__":
    main()
