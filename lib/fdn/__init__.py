"""Functional Distribution Networks: the models of the paper, their training, and its evaluation protocol.

The names that users import are listed in ``__init__.pyi``; each is imported when it is first used, so that a job which
only reads a plan need not wait for PyTorch.

>>> import fdn
>>> data = fdn.load("step")
>>> fdn.model_spec("LP-FDNet", data.n_features, fdn.PUBLISHED)
ModelSpec(name='LP-FDNet', hidden=(24,), hyper=5, latent=None, members=1)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
