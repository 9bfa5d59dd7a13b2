"""``hflray data``: which data sets are here, in which split, and their download and check."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hflray.support.terminal.app import HELP, DataRoot, group
from hflray.support.terminal.output import new_console, say, waiting
from hflray.support.terminal.tables import TextTable

if TYPE_CHECKING:
    from hflray.config import Split
    from hflray.data import Dataset

ARCHIVES_MB = {"fashion_mnist": 31, "cifar10": 170}  # what torchvision downloads

app = group()


@app.callback()
def overview() -> None:
    """List the data sets, download them, and check their files."""


@app.command("list", context_settings=HELP)
def listing(root: DataRoot = None) -> None:
    """List the data sets by name, and which of them are here."""
    from hflray import registry
    from hflray.config import WITH_A_SPLIT
    from hflray.data.datasets import data_root, stored_at

    folder = data_root(root)
    table = TextTable(f"data sets in {folder}", ["data.name", "is"], align="ll")
    for name in registry.names("dataset"):
        path = stored_at(name, folder, None)
        if path is not None:
            table.add_row(name, f"here, {megabytes(path)}: {below(path, folder)}{splits(name, folder)}")
        elif name in WITH_A_SPLIT:
            table.add_row(name, f"not here; hflray data get {name}")
        else:
            table.add_row(name, "part of what is installed, without a file of its own")
    console = new_console()
    console.print(table)
    say(console, "A path ending in .npz is a data set too (x_train y_train x_test y_test).")


@app.command(context_settings=HELP)
def get(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names, or paths ending in .npz.")],
    root: DataRoot = None,
    official: Annotated[
        bool, typer.Option("--official", help="Fashion-MNIST in its official split, even if the other one is here.")
    ] = False,
) -> None:
    """Download data sets that are not here, and check the files of all.

    \b
    Example:
      hflray data get fashion_mnist cifar10 --root /data
    """
    from hflray.config import WITH_A_SPLIT
    from hflray.data.datasets import data_root, load_dataset, stored_at

    console, folder = new_console(), data_root(root)
    if not console.is_terminal:
        os.environ.setdefault("TQDM_DISABLE", "1")  # torchvision's bars, one for each file
    for name in names:
        split: Split | None = "official" if official and name in WITH_A_SPLIT else None
        arrives = name in ARCHIVES_MB and stored_at(name, folder, split) is None
        text = f"downloading {name} ({ARCHIVES_MB[name]} MB)" if arrives else f"reading {name}"
        with waiting(console, text, quiet=arrives and console.is_terminal):
            dataset = load_dataset(name, folder, split=split)
        path, place = stored_at(name, folder, split), "from its own file" if name.endswith(".npz") else "needs no file"
        place = place if path is None else f"{path} ({megabytes(path)})"
        say(console, f"{name}: {describe(dataset)}{_split(dataset)}; {place}")


def below(path: Path, folder: Path) -> Path:
    """Return a path as it lies below a folder, or the path itself if it lies elsewhere."""
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def splits(name: str, folder: Path) -> str:
    """Return the places of Fashion-MNIST with their splits, such as `` (fashion_mnist.npz: stratified split)``."""
    from hflray.data.download import NAME, stored_splits

    places = stored_splits(folder) if name == NAME else {}
    parts = [f"{below(path, folder)}: {split or 'another'} split" for path, split in places.items()]
    return f" ({'; '.join(parts)})" if parts else ""


def _split(dataset: Dataset) -> str:
    from hflray.data.download import NAME, split_of
    from hflray.data.npz import KEYS

    split = split_of({key: getattr(dataset, key) for key in KEYS}) if dataset.name == NAME else None
    return f", in the {split} split" if split else ""


def describe(dataset: Dataset) -> str:
    """Return what a data set holds, such as ``60,000 training and 10,000 test images of 1×28×28, 10 classes``."""
    shape = "×".join(map(str, dataset.input_shape))
    if dataset.num_tokens is not None:
        inputs, unit = "sequences", f"{shape} tokens"
    else:
        inputs, unit = ("images", shape) if dataset.has_images else ("rows", f"{shape} features")
    learned = {"classification": f"{dataset.num_classes} classes", "regression": "a number to predict",
               "next_token": f"{dataset.num_classes} different tokens, the next one to predict"}  # fmt: skip
    sizes = f"{len(dataset.y_train):,} training and {len(dataset.y_test):,} test {inputs} of {unit}"
    return f"{sizes}, {learned[dataset.kind]}"


def megabytes(path: Path) -> str:
    """Return the size of a file or a folder, such as ``53 MB``."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return f"{sum(file.stat().st_size for file in files) / 1e6:,.0f} MB"
