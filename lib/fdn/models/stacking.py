"""Many networks of one shape as one program: their parameters side by side in a single tensor."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fdn.models import Network, Noise


class Stack:
    """Replicates of a network, all parameters in one tensor that an optimiser sees as one.

    Args:
        networks: one per replicate, in C order over ``lead``.
        lead: replicate shape: ``(R,)`` seeds, or ``(R, M)`` seeds and ensemble members.

    Attributes:
        flat: the networks' parameters, ``(*lead, n)``, every replicate's as one row.
        network: the network without parameters of its own; a call binds it to those it is given.
    """

    def __init__(self, networks: Sequence[Network], lead: tuple[int, ...]) -> None:
        if math.prod(lead) != len(networks):
            raise ValueError(f"{len(networks)} networks do not fill replicates of shape {lead}")
        self._single = networks[0]
        rows = [parameters_to_vector(network.parameters()).detach() for network in networks]
        self.flat = torch.stack(rows).view(*lead, -1)  # (*lead, n)
        self.network = copy.deepcopy(networks[0])
        self._slots, self._sizes = [], []
        for name, parameter in list(self.network.named_parameters()):
            path, _, attribute = name.rpartition(".")
            module = self.network.get_submodule(path)
            delattr(module, attribute)
            self._slots.append((module, attribute, parameter.shape))
            self._sizes.append(parameter.numel())
        self.bind(self.flat)  # for what is asked of the network before its first call

    def bind(self, flat: Tensor) -> Network:
        """The network with parameters ``(..., n)``, until it is bound to others."""
        for (module, attribute, shape), part in zip(self._slots, flat.split(self._sizes, dim=-1)):
            part = part if len(shape) == 1 else part.view(*part.shape[:-1], *shape)  # (..., *shape)
            object.__setattr__(module, attribute, part)
        return self.network

    def __call__(
        self, flat: Tensor, x: Tensor, noise: Noise | None = None, kl: str = "none"
    ) -> tuple[Tensor, Tensor | None]:
        """Run the network with parameters ``(..., n)`` on x ``(..., B, d)``.

        Returns what :meth:`Network.forward` does.
        """
        return self.bind(flat)(x, noise, kl)

    def extract(self, row: Tensor) -> Network:
        """One replicate as an ordinary module; row ``(n,)``."""
        network = copy.deepcopy(self._single)
        vector_to_parameters(row.detach().clone(), network.parameters())
        return network
