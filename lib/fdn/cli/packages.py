"""Packages that some commands need and the core does not bring: the extras of pyproject.toml."""

from __future__ import annotations

EXTRAS = {  # the modules that each brings
    "study": ("fontTools", "matplotlib", "openpyxl", "pooch", "requests"),
    "notebooks": ("jupytext", "nbclient", "nbconvert", "nbformat", "papermill"),
    "rivals": ("laplace", "mapie", "ngboost", "quantile_forest"),
    "workflow": ("snakemake",),
    "site": ("PIL", "bs4", "docutils", "furo", "jinja2", "myst_nb", "sphinx"),
}


def lacking(error: BaseException | None) -> str | None:
    """What to say if the package of an extra is not installed, which pandas reports by an error of its own."""
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    module = "" if error is None else str(error.name).partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return extra and f"{module} is not installed, which this needs; `pip install 'fdn[{extra}]'` brings it"
