"""``python -m tests.release``: see `tests.release.distributions`."""

from __future__ import annotations

import sys

from tests.release.distributions import main

if __name__ == "__main__":
    sys.exit(main())
