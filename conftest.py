"""Doctests are looked for in every module: not in the kernels without Triton, nor in the tests that need its interpreter."""

import os
from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["fdn_kernels/triton_ops.py", "fdn_kernels/aot.py"]
if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore.append("tests/triton_interpreted.py")
