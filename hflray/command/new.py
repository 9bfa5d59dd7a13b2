"""``hflray new``: a commented sweep file, or the folder of a system of one's own, to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hflray.errors import ConfigError
from hflray.support.files import write
from hflray.support.terminal.app import HELP, single, spoken

TEMPLATE = Path(__file__).with_name("new.yaml")
SYSTEM = Path(__file__).with_name("system")
ENDINGS = (".yaml", ".yml")

app = single()


@app.command(context_settings=HELP)
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the sweep, or path of its file to write; or: system.")
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="With NAME = system: the folder to write; default: system."),
    ] = None,
) -> None:
    """Write a commented sweep file, NAME.yaml, in the present folder. A file that exists is left alone.

    The name "system" stands for a folder with the tables of devices and edges, a table of data with a site in each
    row, and a sweep of three assigners, for a system of your own (docs/howto/system.md).

    \b
    Examples:
      hflray new my_sweep
      hflray tune my_sweep.yaml --dry-run
      hflray new system my_town
      hflray tune my_town/sweep.yaml
    """
    tune = spoken("tune", "hflray.tune")
    if name == "system":
        written = write_system(folder or Path(name))
        print(f"{written}: {', '.join(sorted(path.name for path in SYSTEM.iterdir()))}; put your own in, then:")
        print(f"  {tune} {written / 'sweep.yaml'} --dry-run     # check the files, and list the trials")
        print(f"  {tune} {written / 'sweep.yaml'}")
        return
    if folder is not None:
        raise ConfigError(f"FOLDER: got {folder} with NAME = {name}; accepted with it: none; remove it")
    path = write_template(Path(name))
    print(f"{path}: a sweep of 4 trials on digits; edit it, then:")
    print(f"  {tune} {path} --dry-run     # check it, and list its trials")
    print(f"  {tune} {path}")


def _refuse_place(argument: str, path: Path) -> None:
    """Raise ConfigError: there is something at a path, or its own folder does not exist."""
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{argument}: got {path}; the folder {path.parent} does not exist; make it, or name another")
    if path.exists():
        raise ConfigError(f"{argument}: {path} exists; choose another name, or remove it")


def write_system(folder: Path) -> Path:
    """Write the files of a system to begin with into a new folder, and return its path.

    Raises:
        ConfigError: there is something at `folder`, or its own folder does not exist.
    """
    _refuse_place("FOLDER", folder)
    for path in sorted(SYSTEM.iterdir()):
        write(folder / path.name, path.read_bytes())
    return folder


def write_template(path: Path) -> Path:
    """Write the template to `path`, with ``.yaml`` added to a name without it, and return the path of the file.

    Raises:
        ConfigError: the file exists, its folder does not, or its name cannot be a sweep's name.
    """
    from hflray.config import validate
    from hflray.sweep import SweepFile

    path = path if path.suffix in ENDINGS else path.with_name(f"{path.name}.yaml")
    validate(SweepFile, {"name": path.stem})
    _refuse_place("NAME", path)
    return write(path, TEMPLATE.read_text(encoding="utf-8").replace("NAME", path.stem))
