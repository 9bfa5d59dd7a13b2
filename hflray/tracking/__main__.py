"""``python -m hflray.tracking``."""

import sys

from hflray.tracking.cli import main

sys.exit(main())
