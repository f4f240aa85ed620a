"""Doctests are looked for in every module: not in the kernels without Triton, nor in the checks that run on their own."""

import sys
from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["fdn_kernels/triton_ops.py", "fdn_kernels/aot.py"]
if not any(argument.endswith("triton_checks.py") for argument in sys.argv):
    collect_ignore.append("tests/triton_checks.py")
