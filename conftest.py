"""Doctests are looked for in every module, but not in the kernels where there is no Triton."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["fdn_kernels/triton_ops.py", "fdn_kernels/aot.py"]
