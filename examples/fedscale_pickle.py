"""Turn FedScale's own file of availability, a Python pickle, into JSON for `python -m hflray.world.fedscale`.

    python examples/fedscale_pickle.py client_behave_trace clients.json

UNSAFE: reading a pickle can run any program that its author put into it. Use this only on a file that you made yourself
or got from a source that you trust, and best on a machine without anything of value.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path


def main(source: str, target: str) -> None:
    """Read the pickle and write the JSON file."""
    with open(source, "rb") as file:
        clients = pickle.load(file)
    wanted = ("active", "inactive", "finish_time")
    chosen = {str(name): {key: client[key] for key in wanted} for name, client in clients.items()}
    Path(target).write_text(json.dumps(chosen), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
