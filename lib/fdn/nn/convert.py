"""FDN layers in a network that exists: which layers, what stays frozen, what they cost."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from torch import nn

from fdn.errors import UserError
from fdn.models.posteriors import multiply_accumulates
from fdn.nn.layers import FDNLinear
from fdn.settings import NonNegative, checked


class Cost(NamedTuple):
    """Of one layer, or of a network: numbers that are counted, not measured; see :func:`costs`."""

    name: str
    parameters: int
    plain_parameters: int  # of an nn.Linear in its place
    products: int  # multiply-accumulates for one draw and input
    plain_products: int


def to_fdn(
    model: nn.Module, layers: str | Sequence[str] | None = None, *, init: str = "pretrained",
    freeze: str | None = None, inplace: bool = False, **options: Any,
) -> nn.Module:  # fmt: skip
    """The model with FDN layers in place of ``nn.Linear``; :func:`costs` says what they add.

    Args:
        model: any module.
        layers: names as in ``model.named_modules()``, or patterns such as ``"blocks.*.fc2"``; None for every
            ``nn.Linear``. Those inside of FDN layers are none of them.
        init: ``"pretrained"`` begins with the layer's weights as the mean of every input's Gaussian (with
            ``structure="low_rank"`` and no residual: the nearest matrix of that rank); ``"fresh"`` begins anew.
        freeze: ``"others"``: only hypernetworks are trained; the rest of the model, and a residual layer's ordinary
            weights, are frozen.
        inplace: change the model instead of a copy.
        options: of :class:`FDNLinear`.

    Raises:
        UserError: for names that are no ``nn.Linear`` of the model, or options that do not go together.

    Source: paper, appendix G, "Middle-layer usage and adapter-style deployment".

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> [type(layer).__name__ for layer in to_fdn(net, "2", freeze="others")]
    ['Linear', 'ReLU', 'FDNLinear']
    """
    checked("init", init, Literal["pretrained", "fresh"]), checked("freeze", freeze, Literal["others"] | None)
    model = model if inplace else copy.deepcopy(model)
    linears = _linear_layers(model, layers)
    made = {linear: _fdn_layer(linear, init, options) for linear in linears.values()}
    for name, linear in linears.items():
        layer = made[linear].train(model.training)
        if name == "":
            model = layer
            break
        parent, _, attribute = name.rpartition(".")
        owner = model.get_submodule(parent)
        setattr(owner, attribute, layer)
        if isinstance(owner, nn.TransformerEncoderLayer):
            owner.activation_relu_or_gelu = 0  # its fused path in eval mode reads weights and would pass the layer by
    if freeze == "others":
        for parameter in set(model.parameters()) - _generated(model):
            parameter.requires_grad_(False)
    return model


def _outside(model: nn.Module) -> dict[str, Any]:
    """The modules that are not in an FDN layer, by every name they have."""
    inside = {m for layer in model.modules() if isinstance(layer, FDNLinear) for m in layer.modules()}
    return {name: m for name, m in model.named_modules(remove_duplicate=False) if m not in inside}


def _generated(model: nn.Module) -> set[nn.Parameter]:
    """The parameters of FDN layers, but for a residual layer's ordinary weights."""
    fdn = [layer for layer in model.modules() if isinstance(layer, FDNLinear)]
    return {p for layer in fdn for name, p in layer.named_parameters() if ".base." not in name}


def _linear_layers(model: nn.Module, layers: str | Sequence[str] | None) -> dict[str, nn.Linear]:
    """Those that are named, by every name they have."""
    found = {name: m for name, m in _outside(model).items() if type(m) is nn.Linear}
    patterns = ["*"] if layers is None else [layers] if isinstance(layers, str) else layers
    if not isinstance(patterns, Sequence) or not patterns or not all(isinstance(p, str) for p in patterns):
        raise UserError(f"layers is {patterns!r}; expected names of the model's layers, such as '4' or 'head'")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in found):
            known = ", ".join(map(repr, found)) or "none"
            raise UserError(f"the model has no nn.Linear named {pattern!r}; it has {known}")
    return {name: m for name, m in found.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}


def _fdn_layer(linear: nn.Linear, init: str, options: dict[str, Any]) -> FDNLinear:
    weight, bias = linear.weight, linear.bias
    layer = FDNLinear(linear.in_features, linear.out_features, bias is not None, **options)
    layer = layer.to(device=weight.device, dtype=weight.dtype)
    if init == "pretrained":
        layer.start_at(weight, bias)
    return layer


def costs(model: nn.Module) -> list[Cost]:
    """What each FDN layer takes, beside an ``nn.Linear`` in its place, and the whole model, as the last row.

    Parameters shared by several layers are counted where they come first, and once in the total. Products are those of
    one draw and one input of each layer; the total is over the model's linear layers.

    Source: paper, appendix G.

    >>> costs(nn.Sequential(FDNLinear(4, 1, hyper=2)))[0]
    Cost(name='0', parameters=40, plain_parameters=5, products=32, plain_products=4)
    """
    rows: list[Cost] = []
    seen: set[nn.Parameter] = set()
    for name, layer in model.named_modules():
        if isinstance(layer, FDNLinear):
            own = set(layer.parameters()) - seen
            seen |= own
            d_in, d_out, products = layer.in_features, layer.out_features, sum(multiply_accumulates(layer.posterior))
            rows.append(Cost(name, sum(p.numel() for p in own), d_out * (d_in + layer.bias), products, d_in * d_out))
    rest = sum(p.numel() for p in set(model.parameters()) - seen)
    linears = {m for m in _outside(model).values() if isinstance(m, nn.Linear)}
    products = sum(m.in_features * m.out_features for m in linears)
    columns = zip(*(row[1:] for row in rows), (rest, rest, products, products))
    return [*rows, Cost("whole model", *map(sum, columns))]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser, those of hypernetworks without weight decay.

    Decay pulls rho towards 0, a standard deviation of 0.69, and the means have their prior. Frozen parameters are left
    out; shared ones occur once.

    >>> groups = parameter_groups(nn.Sequential(nn.Linear(3, 8), FDNLinear(8, 1)), weight_decay=0.01)
    >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
    [(2, 0.01), (4, 0.0)]
    """
    weight_decay = checked("weight_decay", weight_decay, NonNegative)
    generated, trained = _generated(model), [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p not in generated], "weight_decay": weight_decay},
        {"params": [p for p in trained if p in generated], "weight_decay": 0.0},
    ]
