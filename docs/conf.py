"""The documentation's settings for Sphinx; `make docs` builds it."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]  # the package, its benchmarks, and our extensions

import hflray  # noqa: E402

project = "hflray"
author = "the authors of hflray"
release = version = hflray.__version__
copyright = "the authors of hflray, Apache-2.0"

extensions = ["myst_nb", "mathml"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # the notebooks are stored with their outputs, which a test compares
exclude_patterns = ["_build", "_ext", "_static", "images", "paper"]

default_role = "literal"  # docstrings write `name` for code
html_theme = "furo"
html_title = f"hflray {release}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_extra_path = ["../tune_configs/sweep.schema.json"]
html_math_renderer = "mathml"  # MathML needs no script from the network
html_copy_source = False
html_show_sphinx = False
