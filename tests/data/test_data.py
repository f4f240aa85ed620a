"""Toy tasks, the splitter, the data set type, and data sets by name."""

from __future__ import annotations

import doctest
import importlib
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fdn import data
from fdn.data import from_frame, toy
from fdn.errors import UserError


@pytest.mark.parametrize("module", ["fdn.data", "fdn.data.toy", "fdn.data.tabular"])
def test_doctests(module):
    outcome = doctest.testmod(importlib.import_module(module))
    assert outcome.attempted > 0 and outcome.failed == 0


# Toy tasks


def test_toy_inputs_come_from_one_generator_in_the_documented_order():
    d = toy.toy("step")
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(d.x_train[:, 0], rng.uniform(-1, 1, 1024))
    np.testing.assert_array_equal(d.x_val[:256, 0], rng.uniform(-1, 1, 256))
    np.testing.assert_array_equal(d.x_val[256:384, 0], rng.uniform(-10, -1, 128))
    np.testing.assert_array_equal(d.x_val[384:, 0], rng.uniform(1, 10, 128))
    assert d.x_train[:3, 0] == pytest.approx([0.27392337, -0.46042657, -0.91805295], abs=1e-8)
    assert d.id_val.sum() == 256 and d.id_val[:256].all()


def test_printed_validation_is_512_id_points_drawn_after_the_training_points():
    d = data.load("sine", functions="printed", toy_validation="printed")
    rng = np.random.default_rng(0)
    rng.uniform(-1, 1, 1024)
    np.testing.assert_array_equal(d.x_val[:, 0], rng.uniform(-1, 1, 512))
    assert d.id_val.all()


def test_toy_test_grid_holds_both_ends_of_the_band():
    d = toy.toy("quad")
    x = d.x_test[:, 0]
    assert (len(x), d.id_test.sum(), (~d.id_test).sum()) == (2001, 201, 1800)
    np.testing.assert_array_equal(x, [float(f"{hundredths}e-2") for hundredths in range(-1000, 1001)])
    assert x[d.id_test].min() == -1 and x[d.id_test].max() == 1


def test_toy_inputs_do_not_depend_on_the_task_and_targets_are_the_function():
    tasks = [toy.toy(name, functions) for name in data.TOY for functions in toy.FUNCTIONS]
    for d in tasks:
        for part in ("x_train", "x_val", "x_test"):
            np.testing.assert_array_equal(getattr(d, part), getattr(tasks[0], part))
        assert d.x_train.shape == (1024, 1) and d.y_train.shape == (1024,) and d.x_val.shape == (512, 1)
        np.testing.assert_array_equal(d.y_test, d.true_function(d.x_test[:, 0]))
    assert len({d.fingerprint for d in tasks}) == len(tasks)


@pytest.mark.parametrize(
    ("functions", "name", "at_0", "at_half"),
    [
        ("published", "step", -1.0, 1.0),
        ("published", "sine", 0.0, 1.5440989611552312 * np.sin(np.pi * 2.3887483810240893)),
        ("published", "quad", -0.4101670120910159, 0.42622246622132476 / 4 - 0.4101670120910159),
        ("printed", "step", 1.0, 1.0),
        ("printed", "sine", 0.0, 1.54 * np.sin(1.195)),
        ("printed", "quad", -0.41, 0.43 / 4 - 0.41),
    ],
)
def test_toy_functions(functions, name, at_0, at_half):
    y = data.load(name, functions=functions).y_test
    assert (y[1000], y[1050]) == pytest.approx((at_0, at_half), abs=1e-12)


def test_toy_choices_are_checked():
    with pytest.raises(UserError, match="unknown kind of toy functions 'print'; did you mean 'printed'"):
        data.load("step", functions="print")
    with pytest.raises(UserError, match="unknown kind of toy validation points 'id'; choose from published, printed"):
        data.load("step", toy_validation="id")
    with pytest.raises(UserError, match="'cubic'; choose from step, sine, quad"):
        toy.toy("cubic")


# The splitter


def table(n=200, d=3, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(5, 2, (n, d))
    return x, x @ np.arange(1, d + 1) + rng.normal(size=n)


def original(d, part):
    """Rows (x, y) of a part in their own units."""
    x, y = getattr(d, f"x_{part}") * d.x_std + d.x_mean, getattr(d, f"y_{part}") * d.y_std + d.y_mean
    return np.column_stack([x, y])


def test_split_keeps_every_row_once_and_the_band_where_it_belongs():
    x, y = table()
    d = data.feature_band_split(x, y, split_feature=1)
    rows = np.concatenate([original(d, part) for part in ("train", "val", "test")])
    np.testing.assert_allclose(rows[np.argsort(rows[:, 0])], np.column_stack([x, y])[np.argsort(x[:, 0])])
    low, high = np.quantile(x[:, 1], [0.2, 0.8])
    z_train, z_val, z_test = (original(d, part)[:, 1] for part in ("train", "val", "test"))
    assert ((low <= z_train) & (z_train <= high)).all() and ((low <= z_val) & (z_val <= high)).all()
    np.testing.assert_array_equal(d.id_test, (low <= z_test) & (z_test <= high))
    assert d.id_val.all()
    assert (len(z_train), len(z_val), len(z_test), d.id_test.sum()) == (72, 24, 104, 24)


def test_rows_are_shuffled_in_the_documented_order():
    z = np.arange(20.0)  # the band holds rows 4 to 15
    d = data.feature_band_split(z[:, None], z)
    rng = np.random.default_rng(0)
    inside, outside = np.arange(4, 16), np.array([0, 1, 2, 3, 16, 17, 18, 19])
    rng.shuffle(inside)
    rng.shuffle(outside)
    test = np.concatenate([inside[9:], outside])
    rng.shuffle(test)
    for part, rows in (("train", inside[:7]), ("val", inside[7:9]), ("test", test)):
        np.testing.assert_allclose(original(d, part), np.column_stack([rows, rows]), atol=1e-12)


def test_band_includes_its_ends():
    x = np.repeat(np.arange(11.0), 10)[:, None]  # the quantiles are 2 and 8
    d = data.feature_band_split(x, x[:, 0] ** 2)
    inside = np.concatenate([original(d, "train"), original(d, "val"), original(d, "test")[d.id_test]])[:, 0]
    assert len(inside) == 70 and inside.min() == pytest.approx(2) and inside.max() == pytest.approx(8)


def test_standardisation_sees_the_training_rows_only():
    x, y = table()
    before = data.feature_band_split(x, y)
    assert before.x_train.mean(axis=0) == pytest.approx(np.zeros(3), abs=1e-12)
    assert before.x_train.std(axis=0) == pytest.approx(np.ones(3))
    assert (before.y_train.mean(), before.y_train.std()) == pytest.approx((0, 1))
    order = np.argsort(x[:, 0])
    shifted, target = x.copy(), y.copy()
    shifted[order[-5:]] *= 1000  # rows outside the band, beyond its upper end: the split stays
    target[order[-5:]] -= 1000
    after = data.feature_band_split(shifted, target)
    for name in ("x_train", "y_train", "x_val", "y_val", "x_mean", "x_std", "y_mean", "y_std", "id_test"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    changed = (before.x_test != after.x_test).any(axis=1)
    assert changed.sum() == 5 and not changed[before.id_test].any()


def test_a_feature_without_spread_among_the_training_rows_is_left_unscaled():
    x, y = table()
    x[:, 2] = np.where(x[:, 0] == x[:, 0].max(), 7.1, 0.1)  # varies outside the band only
    d = data.feature_band_split(x, y)
    assert d.x_std[2] == 1 and d.x_train[:, 2] == pytest.approx(np.zeros(len(d.y_train)), abs=1e-12)
    assert d.x_test[:, 2].max() == pytest.approx(7.0)


def test_split_arguments_change_the_split():
    x, y = table()
    default = data.feature_band_split(x, y)
    assert data.feature_band_split(x, y, seed=1).fingerprint != default.fingerprint
    assert data.feature_band_split(x, y, quantiles=(0.1, 0.9)).id_test.sum() == 160 - 96 - 32
    assert len(data.feature_band_split(x, y, fractions=(0.5, 0.3)).y_train) == 60
    assert data.feature_band_split(x, y).fingerprint == default.fingerprint


def test_split_refuses_what_it_cannot_split():
    x, y = table()
    with pytest.raises(UserError, match="0 <= low < high <= 1"):
        data.feature_band_split(x, y, quantiles=(0.8, 0.2))
    with pytest.raises(UserError, match="fractions"):
        data.feature_band_split(x, y, fractions=(0.8, 0.2))
    with pytest.raises(UserError, match=r"\(200, 3\) and target \(200, 1\)"):
        data.feature_band_split(x, y[:, None])
    with pytest.raises(UserError, match="split column 3"):
        data.feature_band_split(x, y, split_feature=3)


# The type


def test_fingerprint_follows_the_values_and_not_their_last_bits():
    d = toy.toy("sine")
    last_bit = replace(d, y_test=np.nextafter(d.y_test, np.inf))
    moved = d.y_test.copy()
    moved[7] += 1e-4
    assert last_bit.fingerprint == d.fingerprint == replace(d, source="elsewhere").fingerprint
    assert replace(d, y_test=moved).fingerprint != d.fingerprint
    assert replace(d, id_test=~d.id_test).fingerprint != d.fingerprint


def test_dataset_refuses_column_targets_and_survives_pickling():
    d = toy.toy("step")
    with pytest.raises(ValueError, match=r"y_train \(1024, 1\) should be"):
        replace(d, y_train=d.y_train[:, None])
    with pytest.raises(ValueError, match="ID flags"):
        replace(d, id_test=d.id_test.astype(float))
    assert pickle.loads(pickle.dumps(d)).fingerprint == d.fingerprint


# By name


def test_diabetes_needs_no_download():
    d = data.load("diabetes")
    assert len(d.y_train) + len(d.y_val) + len(d.y_test) == 442 and d.n_features == 10
    assert d.feature_names[d.split_feature] == "body mass index [kg/m^2]"
    assert 18 < d.x_mean[d.split_feature] < 42  # its own units, not scikit-learn's scaled ones
    assert 25 <= d.y_mean <= 346


def test_unknown_names_get_the_closest_one():
    with pytest.raises(UserError, match="'airfol'; did you mean 'airfoil'.*step, sine, quad"):
        data.load("airfol")
    with pytest.raises(UserError, match="did you mean 'ccpp'"):
        data.available("CCPP")
    with pytest.raises(UserError, match="unknown data set 'zzz'; choose from step"):
        data.load("zzz")
    assert data.NAMES == ("step", "sine", "quad", "airfoil", "ccpp", "energy", "diabetes")


@pytest.mark.parametrize("scale", [5e-324, 1e-200, 1e200, 1e306])
@pytest.mark.parametrize("column", ["y", "z"])
def test_numbers_that_cannot_be_standardised_are_refused_without_a_warning(scale, column, recwarn):
    n = np.arange(60.0)
    table = pd.DataFrame({"z": n, "y": n**2 / 60}).assign(**{column: n * scale})
    with pytest.raises(UserError, match=f"column '{column}' has numbers of a size"):
        from_frame(table, target="y", split_column="z")
    assert not recwarn.list
    back = from_frame(table.assign(**{column: n * 1e100}), target="y", split_column="z")
    assert np.isfinite(back.x_test).all() and np.isfinite(back.y_test).all()
