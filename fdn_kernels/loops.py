"""The loops of :mod:`fdn_kernels.numba_ops`, imported where one is first used: who needs none needs no Numba."""


def __getattr__(name: str):
    from fdn_kernels import numba_ops

    return getattr(numba_ops, name)
