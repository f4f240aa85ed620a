"""The one-dimensional toy tasks: step, sine and quadratic functions on a shared grid.

Inputs are the same for every task, model and seed. Training points cover [-1, 1] (ID); the test grid covers
[-10, 10]. There is no observation noise and nothing is standardised.
"""

from __future__ import annotations

import numpy as np

from fdn.data.dataset import Dataset
from fdn.settings import choose

AMPLITUDE = 1.5440989611552312
CYCLES = 2.3887483810240893  # per unit of x
CURVATURE, OFFSET = 0.42622246622132476, -0.4101670120910159


def step(x: np.ndarray) -> np.ndarray:
    """Step of the published runs, f(x) = -1 for x <= 0 and +1 for x > 0, elementwise.

    >>> step(np.array([-0.5, 0.0, 0.5]))
    array([-1., -1.,  1.])
    """
    return np.where(x > 0, 1.0, -1.0)


def sine(x: np.ndarray) -> np.ndarray:
    """Sine of the published runs, f(x) = 1.544 sin(2 pi 2.389 x), elementwise; 2.389 is in cycles.

    >>> sine(np.array([0.0, 0.25 / CYCLES])).round(4)
    array([0.    , 1.5441])
    """
    return AMPLITUDE * np.sin(2 * np.pi * CYCLES * x)


def quad(x: np.ndarray) -> np.ndarray:
    """Quadratic of the published runs, f(x) = 0.426 x^2 - 0.410, elementwise.

    >>> quad(np.array([0.0, 1.0])).round(4)
    array([-0.4102,  0.0161])
    """
    return CURVATURE * x**2 + OFFSET


def printed_step(x: np.ndarray) -> np.ndarray:
    """Step as the paper prints it, the Heaviside function H(x) = 1{x >= 0}, elementwise.

    >>> printed_step(np.array([-0.5, 0.0, 0.5]))
    array([0., 1., 1.])
    """
    return np.heaviside(x, 1.0)


def printed_sine(x: np.ndarray) -> np.ndarray:
    """Sine as the paper prints it, f(x) = 1.54 sin(2.39 x), elementwise; 2.39 is in radians.

    >>> printed_sine(np.array([0.0, 1.0])).round(4)
    array([0.    , 1.0515])
    """
    return 1.54 * np.sin(2.39 * x)


def printed_quad(x: np.ndarray) -> np.ndarray:
    """Quadratic as the paper prints it, f(x) = 0.43 x^2 - 0.41, elementwise.

    >>> printed_quad(np.array([0.0, 1.0])).round(2)
    array([-0.41,  0.02])
    """
    return 0.43 * x**2 - 0.41


FUNCTIONS = {
    "published": {"step": step, "sine": sine, "quad": quad},
    "printed": {"step": printed_step, "sine": printed_sine, "quad": printed_quad},
}


def toy(name: str, functions: str = "published", validation: str = "published") -> Dataset:
    r"""Toy task ``step``, ``sine`` or ``quad`` with noise-free targets y = f(x).

    One generator ("Toy Grid Seed 0") draws 1024 training points x ~ U[-1, 1], then the validation points.
    ``validation="published"``: 256 from U[-1, 1] (ID), 128 from U[-10, -1] and 128 from U[1, 10] (OOD, which
    decide nothing); ``"printed"``: 512 from U[-1, 1]. The test grid is x = -10, -9.99, ..., 10, of which the
    201 points with \|x\| <= 1 are ID. ``functions`` chooses the constants behind the published numbers or the
    rounded ones in print.

    Shapes: x (N, 1), y (N,) with N = 1024, 512, 2001 for training, validation, test; no units.

    Raises:
        UserError: unknown name, functions or validation.

    Source: the paper's toy-data section, the toy grid seed of its appendix and its table of split sizes.
    """
    choose(validation, FUNCTIONS, "kind of toy validation points")
    functions_of = FUNCTIONS[choose(functions, FUNCTIONS, "kind of toy functions")]
    f = functions_of[choose(name, functions_of, "toy task")]
    rng = np.random.default_rng(0)
    x_train = rng.uniform(-1, 1, 1024)
    bands = {"published": [(-1, 1, 256), (-10, -1, 128), (1, 10, 128)], "printed": [(-1, 1, 512)]}[validation]
    x_val = np.concatenate([rng.uniform(*band) for band in bands])
    x_test = np.arange(-1000, 1001) / 100  # correctly rounded, so |x| = 1 is exact at both ends
    n_id = bands[0][2]
    return Dataset(
        name=name,
        x_train=x_train[:, None], y_train=f(x_train),
        x_val=x_val[:, None], y_val=f(x_val),
        x_test=x_test[:, None], y_test=f(x_test),
        id_val=np.arange(len(x_val)) < n_id, id_test=np.abs(x_test) <= 1,
        feature_names=("x",), target_name="y", split_feature=0,
        x_mean=np.zeros(1), x_std=np.ones(1), y_mean=0.0, y_std=1.0,
        true_function=f,
        source=f"noise-free toy function, {functions} constants, {validation} validation points, grid seed 0",
    )  # fmt: skip
