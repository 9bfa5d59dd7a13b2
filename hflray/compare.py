"""The name that 0.2 has documented for `hflray.sweep.compare`; ``python -m hflray.compare`` runs it as well."""

import sys

from hflray.sweep.compare import *
from hflray.sweep.compare import main

if __name__ == "__main__":
    sys.exit(main())
