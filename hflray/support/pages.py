"""Pages of HTML from a package's ``page.html``. The macro of ``table.html`` shows a `TextTable` on all of them."""

from __future__ import annotations

from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def render(package: str, **values: Any) -> str:
    """Return ``page.html`` of a package with these values; what the template does not mark as safe is escaped."""
    loader = ChoiceLoader([PackageLoader(package, "."), PackageLoader("hflray.support", ".")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True,
                              lstrip_blocks=True, keep_trailing_newline=True)  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    return environment.get_template("page.html").render(**values)
