"""``python -m hflray``, the command ``hflray`` where its script is not on the path."""

from hflray.command.cli import main

main()
