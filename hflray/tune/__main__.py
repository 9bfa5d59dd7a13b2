"""``python -m hflray.tune``."""

from hflray.tune.cli import main

main()
