"""In place of CUDA graphs, where there is no GPU: PyTorch's operations in order, and run again."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class Recording(TorchDispatchMode):
    """Operations with the tensors and numbers that they were given; a replay finds only what tensors hold changed."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.operations.append((function, args, kwargs or {}, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        new = {}  # by the recorded result, what it is this time; whatever else there is, is where it was

        def current(t):
            return new.get(id(t), t)

        for function, args, kwargs, recorded in self.operations:
            args, kwargs = tree_map_only(torch.Tensor, current, (args, kwargs))
            again = function(*args, **kwargs)
            pairs = zip(*(r if isinstance(r, (tuple, list)) else (r,) for r in (recorded, again)))
            new.update({id(old): t for old, t in pairs if isinstance(old, torch.Tensor)})
