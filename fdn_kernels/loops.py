"""The loops of :mod:`fdn_kernels.numba_ops`, imported where one is first used: whoever needs none does not need Numba."""


def __getattr__(name: str):
    from fdn_kernels import numba_ops

    return getattr(numba_ops, name)
