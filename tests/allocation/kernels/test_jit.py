"""The cache of compiled kernels knows of every file that a kernel is written in."""

from __future__ import annotations

import re
from pathlib import Path

import hflray
from hflray.allocation.kernels.jit import kernel_files


def test_every_file_with_a_kernel_is_watched():
    package = Path(hflray.__file__).parent
    decorated = {path for path in package.rglob("*.py") if re.search(r"^@(vector_)?kernel\b", path.read_text(), re.M)}
    assert decorated <= set(kernel_files())
    assert {"edge.py", "state.py", "terms.py"} <= {path.name for path in decorated}
    assert package / "allocation" / "newton.py" in kernel_files()  # it speaks of kernels, although it holds none
    assert package / "allocation" / "cvxpy.py" not in kernel_files()
