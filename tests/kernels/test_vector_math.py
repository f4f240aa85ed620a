"""The elementary functions of the compiled loops against the same in extended precision."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fdn_kernels import vector_math


@pytest.mark.parametrize("floor", [0.0, 1e-3])
def test_softplus_is_exact_to_rounding(floor):
    rho = np.concatenate([np.linspace(-700, 700, 100_001), np.linspace(-40, 40, 100_001), [0.0, -0.0, 5e-324, -1e-17]])
    exact = rho.astype(np.longdouble)
    softplus = np.maximum(exact, 0) + np.log1p(np.exp(-abs(exact)))
    found, slope = rho.copy(), np.empty_like(rho)
    vector_math.softplus(found, slope, floor)
    np.testing.assert_allclose(found, (floor + softplus).astype(float), rtol=1e-15)
    np.testing.assert_allclose(
        slope, (np.exp(np.minimum(exact, 0)) / (1 + np.exp(-abs(exact)))).astype(float), rtol=1e-15
    )
    without = rho.copy()
    vector_math.softplus(without, np.empty(0), floor)
    np.testing.assert_allclose(without, found, rtol=1e-15)


def test_exponential_and_logarithm():
    x = np.concatenate([np.linspace(-700, 700, 100_001), np.linspace(-1, 1, 1001)])
    exp, log = np.vectorize(vector_math.exp_minus), np.vectorize(vector_math.log)
    np.testing.assert_allclose(exp(abs(x)), np.exp(-abs(x).astype(np.longdouble)).astype(float), rtol=5e-16)
    u = np.concatenate([np.exp(x), 1 + np.exp(np.linspace(-40, 40, 10_001)), np.linspace(0.4, 3, 10_001)])
    np.testing.assert_allclose(log(u), np.log(u.astype(np.longdouble)).astype(float), rtol=1e-15, atol=1e-300)


def test_softplus_at_the_ends():
    rho = np.array([-math.inf, -1e6, 1e6, math.inf, math.nan])
    vector_math.softplus(rho, np.empty(0), 1e-3)
    np.testing.assert_array_equal(rho, [1e-3, 1e-3, 1e6 + 1e-3, math.inf, math.nan])
