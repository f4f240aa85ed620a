"""Sphinx settings of the site; :func:`fdn.report.site.build.build` calls Sphinx with the pages it wrote."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

project = "Functional Distribution Networks, reproduced"
html_title = "FDN, reproduced"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # tables and mathematics in outputs
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4

add_module_names = False
default_role = "py:obj"  # `name` in a docstring is a link where the name is documented
# What a package only passes on is described where it is defined
autodoc_default_options = {"members": True, "member-order": "bysource", "ignore-module-all": True,
                           # which scikit-learn adds to estimators
                           "exclude-members": "set_fit_request,set_predict_request,set_score_request"}  # fmt: skip
autodoc_typehints = "signature"
autodoc_preserve_defaults = True  # as they are written: a path would be this machine's
autodoc_mock_imports = [] if find_spec("triton") else ["triton"]
napoleon_numpy_docstring = False

exclude_patterns = ["downloads"]  # notebooks as they are, for readers to keep

html_theme = "furo"
templates_path = ["templates/sphinx"]
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = [("site.js", {"defer": "defer"})]
html_favicon = "static/icon.svg"
html_copy_source = False
html_show_copyright = False

mathjax_path = "mathjax/tex-chtml.js"
mathjax3_config = {  # no menu: every formula would be a stop of the Tab key
    "options": {"enableMenu": False, "enableAssistiveMml": True},
    "chtml": {"scale": 0.95},
}


def _escape_bars(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings write |x| for absolute values, which reStructuredText takes for a substitution."""
    lines[:] = [line if line.lstrip().startswith(">>>") else re.sub(r"(?<!`)\|(?!`)", r"\\|", line) for line in lines]


def _anchor_public(app, doctree) -> None:
    """What the page of public names describes a second time is reached there from its source."""
    from sphinx.addnodes import desc_signature

    from fdn.report.site.public import ENTRIES

    modules = {entry.name: entry.module for entry in ENTRIES}
    for signature in doctree.findall(desc_signature) if app.env.docname == "api/public" else ():
        name = signature["fullname"]
        signature["ids"] = signature["ids"] or [f"{modules[name.split('.')[0]]}.{name}"]


def _finish(app, page, template, context, doctree) -> None:
    """Headings in the menu get their level, and the text what :mod:`fdn.report.site.finish` gives it."""
    from fdn.report.site.finish import finish

    if "furo_navigation_tree" in context:
        context["furo_navigation_tree"] = context["furo_navigation_tree"].replace(
            'role="heading"', 'role="heading" aria-level="2"'
        )
    if "body" in context:
        files = {name: Path(app.srcdir) / path for path, name in app.builder.images.items()}
        context["body"] = finish(context["body"], "../" * page.count("/"), files.get)


def setup(app) -> None:
    """Connect what Sphinx has no setting for."""
    app.connect("autodoc-process-docstring", _escape_bars)
    app.connect("doctree-read", _anchor_public)
    app.connect("html-page-context", _finish, priority=900)  # after the theme
