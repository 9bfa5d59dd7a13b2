"""``hflray new``: a commented sweep file to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hflray.errors import ConfigError
from hflray.support.files import write
from hflray.support.terminal.app import HELP, single, spoken

TEMPLATE = Path(__file__).with_name("new.yaml")
ENDINGS = (".yaml", ".yml")

app = single()


@app.command(context_settings=HELP)
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the sweep, or path of its file to write.")],
) -> None:
    """Write a commented sweep file, NAME.yaml, in the present folder. A file that exists is left alone.

    \b
    Example:
      hflray new my_sweep
      hflray tune my_sweep.yaml --dry-run
    """
    path = write_template(Path(name))
    tune = spoken("tune", "hflray.tune")
    print(f"{path}: a sweep of 4 trials on digits; edit it, then:")
    print(f"  {tune} {path} --dry-run     # check it, and list its trials")
    print(f"  {tune} {path}")


def write_template(path: Path) -> Path:
    """Write the template to `path`, with ``.yaml`` added to a name without it, and return the path of the file.

    Raises:
        ConfigError: the file exists, its folder does not, or its name cannot be a sweep's name.
    """
    from hflray.config import validate
    from hflray.sweep import SweepFile

    path = path if path.suffix in ENDINGS else path.with_name(f"{path.name}.yaml")
    validate(SweepFile, {"name": path.stem})
    if not path.parent.is_dir():
        raise ConfigError(f"NAME: got {path}; the folder {path.parent} does not exist; make it, or name another")
    if path.exists():
        raise ConfigError(f"NAME: {path} exists; choose another name, or remove the file")
    return write(path, TEMPLATE.read_text(encoding="utf-8").replace("NAME", path.stem))
