"""The command ``python -m hflray.report``."""

from hflray.report.cli import main

main()
