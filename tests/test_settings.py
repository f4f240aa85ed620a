"""Settings: every number has a range, which holds on every path, and every label is read back."""

from __future__ import annotations

import dataclasses
import enum
import math
import types
import typing

import numpy as np
import pytest
import torch

from fdn.arguments import FORMER, parse_protocol
from fdn.data import feature_band_split, load
from fdn.errors import UserError
from fdn.models import ModelSpec, model_spec
from fdn.models.posteriors import FDNLinear, GaussianLinear, LatentGaussianLinear
from fdn.protocol import PROTOCOLS, PUBLISHED, RECOMMENDED, Protocol, get_protocol
from fdn.settings import Range, kinds
from fdn.training.loop import fit
from fdn.training.objectives import HeteroscedasticGaussian, HomoscedasticGaussian, beta_at

CLASSES = (Protocol, ModelSpec, HomoscedasticGaussian, HeteroscedasticGaussian)
ODD = (math.nan, math.inf, -math.inf, -1, 0, 0.5, 1, True, "3", None, 10**400, torch.tensor(1.0), np.float32(0.25))


def parts(kind: object) -> list[object]:
    """A kind and everything it is made of."""
    return [kind, *(part for argument in typing.get_args(kind) for part in parts(argument))]


def allows(kind: object, value: object) -> bool:
    """Whether a field of the kind should take the value, by its declaration alone."""
    if value is None:
        return type(None) in typing.get_args(kind)
    number = int if int in parts(kind) else float
    if isinstance(value, (bool, str, torch.Tensor)) or number is int and not isinstance(value, int):
        return False
    if isinstance(value, int) and value > 10**300 or not math.isfinite(value):
        return False
    [limits] = [part for part in parts(kind) if isinstance(part, Range)]
    value = float(value)
    low = value > limits.low if limits.open_low else value >= limits.low
    return low and (value < limits.high if limits.open_high else value <= limits.high)


NUMBERS = [(cls, name) for cls in CLASSES for name, kind in kinds(cls).items() if {int, float} & set(parts(kind))]


@pytest.mark.parametrize(("cls", "name"), NUMBERS, ids=lambda it: it if isinstance(it, str) else it.__name__)
def test_every_number_among_the_settings_has_a_range_that_holds_wherever_it_is_given(cls, name):
    kind = kinds(cls)[name]
    assert [part for part in parts(kind) if isinstance(part, Range)], f"{cls.__name__}.{name} has no range"
    valid = {Protocol: PUBLISHED, ModelSpec: ModelSpec("MLPNet", (3,), 2, 2)}.get(cls) or cls()
    wrap = (lambda value: (4, value)) if typing.get_origin(kind) is tuple else lambda value: value
    for value in ODD:
        if allows(kind, value):
            taken = getattr(dataclasses.replace(valid, **{name: wrap(value)}), name)
            assert taken == wrap(value) and type(taken) in (tuple, int, float, type(None))
            continue
        with pytest.raises(UserError, match=f"{name} is .*; expected "):
            dataclasses.replace(valid, **{name: wrap(value)})
        if cls is Protocol and isinstance(value, (float, bool, np.floating)):  # as text
            for label, settings in (("published", [f"{name}={value}"]), (f"published+{name}={value}", ())):
                with pytest.raises(UserError, match=f"{name} is '{value}'; expected "):
                    parse_protocol(label, settings)


def test_clipping_at_nothing_or_less_is_refused_and_none_is_no_clipping():
    for value in (0, 0.0, -1, -0.0, math.nan):
        with pytest.raises(UserError, match="clip_norm is .*; expected a number above 0 or none"):
            dataclasses.replace(PUBLISHED, clip_norm=value)
    assert dataclasses.replace(PUBLISHED, clip_norm=None).clip_norm is None


def test_equal_settings_have_one_label_whatever_the_type_of_their_numbers():
    for value in (2, 2.0, np.float64(2), np.int64(2), np.float32(2)):
        assert dataclasses.replace(PUBLISHED, beta_max=value).label == "published+beta_max=2.0"
    assert dataclasses.replace(PUBLISHED, floor=-0.0).label == "published+floor=0.0"
    assert dataclasses.replace(PUBLISHED, epochs=np.int64(7)).label == "published+epochs=7"


def random_protocol(rng: np.random.Generator) -> Protocol:
    """Any base with some fields replaced by any valid value, of all sizes a number can have."""
    changes = {}
    for name, kind in kinds(Protocol).items():
        if name == "base" or rng.random() < 0.6:
            continue
        options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
        option = options[rng.integers(len(options))]
        found = parts(option)
        words = [word for word in found if isinstance(word, str)]
        [limits] = [part for part in found if isinstance(part, Range)] or [None]
        if words:
            changes[name] = str(rng.choice(words))
        elif type(None) in found:
            changes[name] = None
        elif bool in found:
            changes[name] = bool(rng.integers(2))
        elif int in found:
            changes[name] = int(rng.integers(1, limits.high, endpoint=True))
        else:
            number = rng.random() if limits.high == 1 else 10.0 ** rng.uniform(-300, 300)
            changes[name] = float(np.clip(number, limits.low, limits.high))
    return dataclasses.replace(PROTOCOLS[str(rng.choice(list(PROTOCOLS)))], **changes)


def test_every_label_is_read_back_as_the_protocol_it_names():
    rng = np.random.default_rng(0)
    drawn = [random_protocol(rng) for _ in range(300)]
    labels = [protocol.label for protocol in drawn]
    assert any("e+" in label for label in labels) and any("e-" in label for label in labels)
    assert any("clip_norm=None" in label for label in labels)
    assert [parse_protocol(label) for label in labels] == drawn
    assert [parse_protocol(label).label for label in labels] == labels


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("published+", "cannot read the setting ''"),
        ("published+warmup", "cannot read the setting 'warmup'"),
        ("published+prior_scale=1e+16+", "prior_scale is '1e.16.'; expected"),
        ("published+prior_scale=1e++16", "prior_scale is"),
        ("published+warmup=5+warmup=6", "'warmup' is given twice"),
        ("published+published", "cannot read the setting 'published'"),
        ("+warmup=5", "unknown protocol ''"),
        ("published+base=as_written", "unknown setting 'base'"),
    ],
)
def test_what_is_no_label_is_said(label, said):
    with pytest.raises(UserError, match=said):
        parse_protocol(label)


def test_a_setting_that_is_set_to_none_is_set():
    from fdn.protocol import get_protocol

    assert get_protocol("published", clip_norm=None).label == "published+clip_norm=None"


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, True, "1"])
def test_layers_made_directly_and_schedules_refuse_what_is_no_setting(value):
    for make in (
        lambda: FDNLinear(2, 1, 3, "layer", 2, floor=value, prior_scale=1.0),
        lambda: FDNLinear(2, 1, 3, "layer", 2, floor=1e-3, prior_scale=value),
        lambda: GaussianLinear(2, 1, "exp", floor=value, prior_scale=1.0),
        lambda: LatentGaussianLinear(2, 1, 3, 2, "exp", floor=1e-3, prior_scale=value),
        lambda: beta_at(value, "linear", 10),
        lambda: beta_at(1, "linear", value),
        lambda: beta_at(1, "linear", 10, value),
    ):
        with pytest.raises(UserError, match="; expected a (whole )?number"):
            make()
    with pytest.raises(UserError, match="link is 'log'; expected one of exp, softplus"):
        GaussianLinear(2, 1, "log", floor=1e-3, prior_scale=1.0)
    with pytest.raises(UserError, match="prior_scale is 0"):
        GaussianLinear(2, 1, "exp", floor=1e-3, prior_scale=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, 1.5, True, "0.5"])
@pytest.mark.parametrize(("name", "place"), [("quantiles", 0), ("quantiles", 1), ("fractions", 0), ("fractions", 1)])
def test_bands_and_fractions_are_numbers_between_nothing_and_everything(name, place, value):
    given = [0.1, 0.6]
    given[place] = value
    with pytest.raises(UserError, match=f"{name} is .*; expected .* number"):
        feature_band_split(np.random.default_rng(0).normal(size=(50, 2)), np.arange(50.0), **{name: tuple(given)})


def test_a_choice_is_kept_as_the_plain_word():
    class Noise(str, enum.Enum):  # noqa: UP042
        SHARED = "independent"

    protocol = dataclasses.replace(PUBLISHED, noise=Noise.SHARED, objective=np.str_("iwae"))
    assert type(protocol.noise) is type(protocol.objective) is str
    assert protocol.label == "published+objective=iwae+noise=independent"


@pytest.mark.parametrize(("name", "value"), [("prior_scale", 1e-200), ("prior_scale", 1e200), ("hyper_factor", 1e308)])
def test_a_number_whose_square_or_width_is_none_is_refused_where_it_is_given(name, value):
    with pytest.raises(UserError, match=f"{name} is .*; expected a number"):
        parse_protocol("as_written", [f"{name}={value}"])


def test_names_and_numbers_of_another_type_are_answered_in_one_sentence():
    spec = model_spec("MLPNet", 1, PUBLISHED)
    for call, message in (
        (lambda: get_protocol(["published"]), "unknown protocol"),
        (lambda: get_protocol("published", warmups=3), "unknown setting 'warmups'"),
        (lambda: load(None), "unknown data set None"),
        (lambda: load(["step"]), "unknown data set"),
        (lambda: model_spec(["LP-FDNet"], 1, PUBLISHED), "unknown model"),
        (lambda: model_spec("LP-FDNet", 0, PUBLISHED), "n_features is 0"),
        (lambda: model_spec("LP-FDNet", "1", PUBLISHED), "n_features is '1'"),
        (lambda: fit(spec, load("step"), PUBLISHED, [0], likelihood="homoscedastic"), "likelihood is"),
    ):
        with pytest.raises(UserError, match=message):
            call()


def test_settings_are_found_by_their_former_names():
    named = parse_protocol("recommended+fit_noise=false", ["noise_variance=0.1", "networks=2"])
    assert named == dataclasses.replace(RECOMMENDED, fit_observation_noise=False, observation_variance=0.1, members=2)
    assert set(FORMER.values()) < set(kinds(Protocol))
