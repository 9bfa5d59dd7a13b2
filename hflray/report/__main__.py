"""The command ``python -m hflray.report``."""

from hflray.command.report import main

main()
