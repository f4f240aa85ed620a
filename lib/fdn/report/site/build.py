"""From a results folder to HTML files: the pages are written anew, then Sphinx makes the site of them."""

from __future__ import annotations

import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from fdn.errors import UserError
from fdn.report.site import pages

NEEDED = ("sphinx", "myst_nb", "furo", "bs4", "PIL")


def build(folder: Path, out: Path) -> int:
    """Write the site of a results folder to ``out``, in place of one that is there, and return its number of pages.

    Nothing is fetched from a network and no notebook is run. A warning of Sphinx is an error.

    Raises:
        ModuleNotFoundError: if a package of the extra ``site`` is missing.
        UserError: if ``out`` holds other files than a site, or the folder holds no published results.
        FileNotFoundError: if the folder holds no results.
        RuntimeError: if Sphinx reports a warning or an error; it has printed which.
    """
    if absent := [name for name in NEEDED if not find_spec(name)]:
        raise ModuleNotFoundError(f"the site needs {', '.join(absent)}", name=absent[0])
    if out.exists() and any(out.iterdir()) and not (out / ".buildinfo").exists():
        raise UserError(f"{out} holds files that are no site; choose another folder or delete it")
    from sphinx.cmd.build import build_main

    out = Path(out).absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
        source, html, doctrees = (Path(temporary) / name for name in ("source", "html", "doctrees"))
        source.mkdir()
        pages.write(folder, source)
        options = ["-b", "html", "-W", "--keep-going", "-q", "-c", str(Path(__file__).parent), "-d", str(doctrees)]
        if build_main([*options, str(source), str(html)]):
            raise RuntimeError("Sphinx found fault with a page; its messages are above")
        shutil.copytree(source / "explore", html / "explore")  # which a page's script loads, as it is
        shutil.rmtree(out, ignore_errors=True)
        html.replace(out)
    return len(list(out.rglob("*.html")))
