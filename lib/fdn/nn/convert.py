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
    names = _linear_layers(model, [layers] if isinstance(layers, str) else layers)
    linears = {name: model.get_submodule(name) for name in names}  # one module may have several names
    layers_of = {id(linear): _fdn_layer(linear, init, options) for linear in linears.values()}
    made = {name: layers_of[id(linear)] for name, linear in linears.items()}
    for name, layer in made.items():
        layer.train(model.training)
        if name == "":
            model = layer
            break
        parent, _, attribute = name.rpartition(".")
        owner = model.get_submodule(parent)
        setattr(owner, attribute, layer)
        if isinstance(owner, nn.TransformerEncoderLayer):
            owner.activation_relu_or_gelu = 0  # its fused path in eval mode reads weights and would pass the layer by
    if freeze == "others":
        kept = _hypernetworks(model)  # with those of an earlier call
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.requires_grad and id(parameter) in kept)
    return model


def _hypernetworks(model: nn.Module) -> set[int]:
    """Ids of the parameters of FDN layers, but for a residual layer's ordinary weights."""
    fdn = [layer for layer in model.modules() if isinstance(layer, FDNLinear)]
    return {id(p) for layer in fdn for name, p in layer.named_parameters() if ".base." not in name}


def _linear_layers(model: nn.Module, patterns: Sequence[str] | None) -> list[str]:
    inside = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, FDNLinear))
    named = model.named_modules(remove_duplicate=False)
    found = [name for name, module in named if type(module) is nn.Linear and not name.startswith(inside)]
    patterns = ["*"] if patterns is None else patterns
    if not isinstance(patterns, Sequence) or not patterns or not all(isinstance(p, str) for p in patterns):
        raise UserError(f"layers is {patterns!r}; expected names of the model's layers, such as '4' or 'head'")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in found):
            known = ", ".join(map(repr, found)) or "none"
            raise UserError(f"the model has no nn.Linear named {pattern!r}; it has {known}")
    return [name for name in found if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _fdn_layer(linear: Any, init: str, options: dict[str, Any]) -> FDNLinear:
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
    seen: set[int] = set()
    for name, module in model.named_modules():
        if not isinstance(module, FDNLinear):
            continue
        own = {id(p): p.numel() for p in module.parameters() if id(p) not in seen}
        seen |= own.keys()
        d_in, d_out, with_bias = module.in_features, module.out_features, module.bias
        plain = d_out * (d_in + with_bias)
        rows.append(Cost(name, sum(own.values()), plain, sum(multiply_accumulates(module.posterior)), d_in * d_out))
    inside = {id(m) for fdn in model.modules() if isinstance(fdn, FDNLinear) for m in fdn.modules()}
    others = [m for m in model.modules() if isinstance(m, nn.Linear) and id(m) not in inside]
    products = sum(m.in_features * m.out_features for m in others)
    parameters = sum(p.numel() for p in model.parameters())
    rest = parameters - sum(row.parameters for row in rows)
    total = Cost(
        "whole model", parameters, rest + sum(row.plain_parameters for row in rows),
        products + sum(row.products for row in rows), products + sum(row.plain_products for row in rows),
    )  # fmt: skip
    return [*rows, total]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser, those of hypernetworks without weight decay.

    Decay pulls rho towards 0, a standard deviation of 0.69, and the means have their prior. Frozen parameters are left
    out; shared ones occur once.

    >>> groups = parameter_groups(nn.Sequential(nn.Linear(3, 8), FDNLinear(8, 1)), weight_decay=0.01)
    >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
    [(2, 0.01), (4, 0.0)]
    """
    weight_decay = checked("weight_decay", weight_decay, NonNegative)
    made = _hypernetworks(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if id(p) not in made], "weight_decay": weight_decay},
        {"params": [p for p in trained if id(p) in made], "weight_decay": 0.0},
    ]
