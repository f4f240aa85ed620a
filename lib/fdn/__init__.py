"""Functional Distribution Networks: the models of the paper, their training, and its evaluation protocol.

>>> import fdn
>>> data = fdn.load("step")
>>> fdn.model_spec("LP-FDNet", data.n_features, fdn.PUBLISHED)
ModelSpec(name='LP-FDNet', hidden=(24,), hyper=5, latent=None, members=1)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdn.data import load
    from fdn.data.dataset import Dataset
    from fdn.data.tabular import from_frame
    from fdn.errors import UserError
    from fdn.models import MODELS, ModelSpec, model_spec
    from fdn.training.prediction import Prediction
    from fdn.protocol import AS_WRITTEN, PUBLISHED, Protocol, get_protocol
    from fdn.training.loop import Fit, fit

_HOMES = {  # imported when used: a job that only reads a plan need not wait for PyTorch
    "AS_WRITTEN": "fdn.protocol",
    "Dataset": "fdn.data.dataset",
    "Fit": "fdn.training.loop",
    "MODELS": "fdn.models",
    "ModelSpec": "fdn.models",
    "PUBLISHED": "fdn.protocol",
    "Prediction": "fdn.training.prediction",
    "Protocol": "fdn.protocol",
    "UserError": "fdn.errors",
    "fit": "fdn.training.loop",
    "from_frame": "fdn.data.tabular",
    "get_protocol": "fdn.protocol",
    "load": "fdn.data",
    "model_spec": "fdn.models",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fdn' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
