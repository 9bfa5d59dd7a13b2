"""The name that 0.2 has documented for `hflray.sweep.compare`; ``python -m hflray.compare`` is ``hflray compare``."""

import sys

from hflray.command.compare import main
from hflray.sweep.compare import *

if __name__ == "__main__":
    sys.exit(main())
