"""One pass through a model: what its FDN layers share, and what they report.

Modules hold parameters only. The network's input, the kind of noise and the KL terms live in a :class:`Pass`, which
belongs to the thread for as long as the call lasts.
"""

from __future__ import annotations

import copy
import functools
import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from fdn.errors import UserError
from fdn.models.posteriors import noise_shape
from fdn.settings import Count, NonNegative, checked
from fdn_kernels.registered import standard_normal

Noise = Literal["local", "shared", "independent", "none"]


class _Here(threading.local):
    def __init__(self) -> None:
        self.run: Pass | None = None


_here = _Here()


class Pass:
    """What one call of :func:`forward` or :func:`sample`, or a plain call of a layer (without x), carries along.

    The source of the noise is a generator, a Philox seed ``()`` (with ``first`` as the first draw's number), or None
    for PyTorch's global state.
    """

    def __init__(
        self, x: Any = None, draws: int | None = None, noise: str = "local", kl: str = "none",
        source: Generator | Tensor | None = None, first: int = 0, temperature: float = 1.0,
    ) -> None:  # fmt: skip
        self.x, self.draws, self.noise, self.kl = x, draws, noise, kl
        self.examples = 0 if x is None else len(_first(x))  # B
        self.source, self.first, self.temperature = source, first, temperature
        self.terms: list[Tensor] = []  # of each layer, (K or 1, B)
        self.requests = 0
        self.with_grad = torch.is_grad_enabled()

    def __enter__(self) -> None:
        self.before, _here.run = _here.run, self

    def __exit__(self, *_: object) -> None:
        _here.run = self.before

    def rows(self, x: Tensor, width: int) -> Tensor:
        """A layer's input as ``(K, rows, width)``."""
        k = self.draws or 1
        if x.dim() < 1 or x.shape[-1] != width:
            raise ValueError(f"FDNLinear({width}, ...) takes inputs (..., {width}), not {tuple(x.shape)}")
        if k > 1 and (x.dim() < 2 or x.shape[0] != k * self.examples):
            raise ValueError(
                f"{k} draws of {self.examples} examples are {k * self.examples} rows of the first axis, but FDNLinear "
                f"was given {tuple(x.shape)}: put the batch first, or run one draw at a time (sample(..., chunk=1))"
            )
        return x.reshape(k, math.prod(x.shape[:-1]) // k, width)

    def network_input(self, lead: torch.Size, width: int) -> Tensor:
        """The network's input as the signal of rows ``lead``, ``(1, rows, width)``: the same for every draw.

        Inputs of the same leading axes as the layer's are taken position by position; any other example is one vector.
        """
        x, k = self.x, self.draws or 1
        if x is None:
            raise UserError(
                "FDNLinear(condition='input') sees the network's input inside fdn.nn.forward(model, x) and "
                "fdn.nn.sample(model, x); in a plain call, pass it: layer(a, context=x)"
            )
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise UserError("condition='input' needs a network whose input is one tensor of floating-point numbers")
        lead = torch.Size([lead[0] // k, *lead[1:]])
        if x.shape != (*lead, width):
            x = x.flatten(1) if x.dim() > 1 else x.unsqueeze(-1)  # (B, width)
            if x.shape[-1] != width or len(x) != lead[0]:
                raise UserError(
                    f"the network's input {tuple(self.x.shape)} is not of {width} features for each example: make the "
                    f"layer with input_features={x.shape[-1]}"
                )
            x = x.view(len(x), *(1,) * (len(lead) - 1), width).expand(*lead, width)
        return x.reshape(1, math.prod(lead), width)

    def normal(self, layer: nn.Module, rows: int, like: Tensor) -> Tensor | None:
        """The standard normal numbers that a layer needs for ``rows`` inputs of this pass."""
        shape = noise_shape(layer, self.noise, self.draws or 1, rows)
        self.requests += 1  # keeps layers apart that share a seed
        if shape is None:
            return None
        dtype = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
        if isinstance(self.source, Tensor):
            seed = self.source.to(like.device)
            eps = standard_normal(seed, self.noise, self.first, *shape, self.requests, dtype)
        else:
            given: dict[str, Any] = {} if self.source is None else {"generator": self.source}
            eps = torch.randn(shape, dtype=dtype, device=like.device, **given)
        return eps if self.temperature == 1 else self.temperature * eps

    def record(self, term: Tensor | None, lead: torch.Size, trained: bool) -> None:
        """Keep a layer's KL ``(k, rows)`` as ``(k, B)``: a sum over positions, or a mean where examples are mixed."""
        if term is None:
            return
        if trained and self.with_grad and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError(
                "an FDN layer runs under no_grad inside a pass that needs gradients, so its KL would be lost: "
                "checkpoint with use_reentrant=False"
            )
        n = self.examples
        if lead[:1] == (n * (self.draws or 1),):
            self.terms.append(term.reshape(len(term), n, math.prod(lead[1:])).sum(-1))
        else:
            self.terms.append((term.sum(-1, keepdim=True) / n).expand(-1, n))


def _first(x: Any) -> Tensor:
    """The first tensor of a network's input, whose first axis is that of the B examples."""
    first = next((t for t in tree_leaves(x) if isinstance(t, Tensor)), None)
    if first is None or first.dim() == 0:
        raise UserError("the network's input holds no tensor (B, ...): examples are along the first axis")
    return first


def current() -> Pass:
    """The pass of the calling thread; a fresh one, with local noise and no KL, for a layer called by itself."""
    run = _here.run
    if run is not None:
        return run
    if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "an FDN layer is run again in the backward pass and would draw other weights: checkpoint with "
            "use_reentrant=False and context_fn=fdn.nn.checkpoint_contexts"
        )
    return Pass()


def _run(run: Pass, model: Callable[..., Any]) -> Any:
    """The model on the pass's input, for all its draws at once, ``(K, B, ...)``."""
    k, x = run.draws, run.x
    if k is not None:
        x = tree_map_only(Tensor, lambda t: t.expand(k, *t.shape).flatten(0, 1), x)  # (K B, ...)
    with run:
        output = model(x)
    return output if k is None else tree_map_only(Tensor, lambda t: t.unflatten(0, (k, t.shape[0] // k)), output)


def forward(
    model: Callable[[Any], Any], x: Any, generator: Generator | None = None, *, draws: int | None = None,
    noise: Noise = "local", kl: str = "analytic", per_layer: bool = False,
) -> tuple[Any, Tensor]:  # fmt: skip
    """One pass with fresh noise: the model's output, and the KL of its FDN layers.

    Args:
        model: a module with FDN layers, or a function that calls one (as for ``torch.func.functional_call``).
        x: its input, B examples along the first axis: a tensor, or a tuple or dict of them.
        generator: of the noise; None for PyTorch's global state (``torch.manual_seed``).
        draws: K, for an axis of draws; examples are then repeated along the first axis.
        noise: ``"local"`` (fresh weights for every example and position, drawn after the product: exact, and the
            least noisy gradient), ``"independent"`` (the same distribution, by weights), ``"shared"`` (one noise for
            all examples of a draw) or ``"none"`` (the mean weights).
        kl: ``"analytic"``, ``"sampled"`` (log q - log p0 at the draw, for :func:`fdn.nn.iwae_loss`; needs shared or
            independent noise) or ``"none"``.
        per_layer: keep the layers apart.

    Returns:
        The output, with ``(K, B, ...)`` in place of ``(B, ...)`` if draws were asked for, and the KL in nats,
        ``(B,)`` or ``(K, B)``: summed over weights, over an example's positions and over layers (one that runs twice
        draws twice and counts twice); ``per_layer`` appends an axis of layers, in the order of their calls.

    Raises:
        RuntimeError: where FDN layers of the model ran in another thread (``nn.DataParallel``) or not at all, and
            where they run under no_grad inside of this pass.
        UserError: for draws, a noise, a kl or a generator that are none, or an input without examples.

    Source: paper, algorithm 1 (lines 5 to 13) and appendix B.

    >>> from fdn.nn import FDNLinear
    >>> output, kl = forward(FDNLinear(3, 2), torch.randn(8, 3))
    >>> output.shape, kl.shape
    (torch.Size([8, 2]), torch.Size([8]))
    """
    if not torch.compiler.is_compiling():
        checked("noise", noise, Noise), checked("kl", kl, Literal["analytic", "sampled", "none"])
        checked("draws", draws, Count | None), checked("generator", generator, Generator | None)
    run = Pass(x, draws, noise, kl, generator)
    output = _run(run, model)
    if not run.terms:
        if isinstance(model, nn.Module) and kl != "none" and any(hasattr(m, "posterior") for m in model.modules()):
            raise RuntimeError("no FDN layer of the model ran in this pass: in another thread, or not at all?")
        run.terms.append(torch.zeros(1, run.examples, device=_first(x).device))
    terms = [term.expand(draws or 1, -1) for term in run.terms]
    total = torch.stack(terms, -1) if per_layer else functools.reduce(torch.add, terms)
    return output, total if draws is not None else total.squeeze(0)


@torch.no_grad()
def sample(
    model: Callable[[Any], Any], x: Any, draws: int = 100, shared: bool = True, generator: Generator | None = None, *,
    temperature: float = 1.0, chunk: int | None = None,
) -> Any:  # fmt: skip
    """K draws of the model's output, without gradients.

    Args:
        model, x: as in :func:`forward`.
        draws: K.
        shared: one noise for all examples of a draw, so that draw k is one function, the same one for other rows
            under a generator of the same state; False: fresh for every example.
        generator: gives one number, the seed of all noise; None for PyTorch's global state.
        temperature: factor of the weights' standard deviations.
        chunk: draws that run at once; by default so many that 65,536 rows do. The numbers do not depend on it.

    Returns:
        ``(K, B, ...)``, as the model returns ``(B, ...)``.

    Raises:
        UserError: for draws, a chunk or a temperature outside their range, and a generator that is none.

    Source: paper, algorithm 1 (line 20); the temperature: section 6.

    >>> from fdn.nn import FDNLinear
    >>> sample(FDNLinear(3, 2), torch.randn(8, 3), draws=50).std(0).shape
    torch.Size([8, 2])
    """
    draws, temperature = checked("draws", draws, Count), checked("temperature", temperature, NonNegative)
    checked("generator", generator, Generator | None)
    at_once = max(1, 65_536 // max(1, len(_first(x))))
    chunk = min(draws, at_once) if chunk is None else checked("chunk", chunk, Count)
    on = "cpu" if generator is None else generator.device
    seed = torch.randint(-(2**63), 2**63 - 1, (), generator=generator, device=on)
    noise = "shared" if shared else "local"
    runs = [Pass(x, min(chunk, draws - k), noise, "none", seed, k, temperature) for k in range(0, draws, chunk)]
    outputs = [_run(run, model) for run in runs]
    return tree_map(lambda *parts: torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0], *outputs)


def checkpoint_contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
    """For gradient checkpointing: what is run again in the backward pass draws what it drew.

    Without it the layers refuse to be run again. Returns the contexts of the first and the second run, as
    ``torch.utils.checkpoint.checkpoint`` asks for.

    >>> from fdn.nn import FDNLinear
    >>> layer, x = FDNLinear(3, 2), torch.randn(8, 3)
    >>> options = {"use_reentrant": False, "context_fn": checkpoint_contexts}
    >>> output, kl = forward(lambda x: torch.utils.checkpoint.checkpoint(layer, x, **options), x)
    >>> kl.sum().backward()
    """
    run = copy.copy(_here.run or Pass())
    run.terms = []  # which nobody reads
    if isinstance(run.source, Generator):
        run.source = run.source.clone_state()
    return nullcontext(), run
