"""Doctests are looked for in every module, but not in the kernels where there is no Triton.

And how long the files took.
"""

from collections import Counter
from importlib.util import find_spec

import pytest

collect_ignore = [] if find_spec("triton") else ["fdn_kernels/triton", "fdn_kernels/aot.py"]
LONGEST = "test_triton", "06_kernel"  # of the tests and of the notebooks
LONG = 5.0  # seconds; a test that takes longer says why


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.stem not in LONGEST)  # first: no process is left with one at the end


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call" and call.duration > LONG and isinstance(item, pytest.Function) and not item.obj.__doc__:
        report.user_properties.append(("long", item.nodeid))
    return report


def pytest_terminal_summary(terminalreporter):
    seconds, unexplained = Counter(), set()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration") and hasattr(report, "nodeid"):
                seconds[report.nodeid.partition("::")[0]] += report.duration
                unexplained |= {name for kind, name in report.user_properties if kind == "long"}
    if seconds:
        terminalreporter.section("seconds per file")
    for file, taken in seconds.most_common():
        if taken >= 0.05:
            terminalreporter.write_line(f"{taken:7.1f}  {file}")
    for name in sorted(unexplained):
        terminalreporter.write_line(f"Over {LONG:g} s, and no docstring says why: {name}")
