"""Training steps by autograd, for whatever :mod:`fdn.training.fused` does not take, and for a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fdn.devices import staged
from fdn.models import Noise
from fdn.models.stacking import Stack
from fdn.protocol import Protocol
from fdn.training.objectives import Likelihood, beta_elbo, iwae


class AutogradStep:
    """Forward, backward, clipping and Adam for all replicates of a stack at once.

    Args:
        stack: its ``flat`` is updated in place.
        protocol: settings.
        likelihood: of the targets.
    """

    def __init__(self, stack: Stack, protocol: Protocol, likelihood: Likelihood) -> None:
        self.stack, self.protocol, self.likelihood = stack, protocol, likelihood
        self.flat = stack.flat.requires_grad_()  # (*lead, n)
        on_gpu = not self.flat.is_cpu
        self.optimizer = torch.optim.Adam([self.flat], lr=protocol.learning_rate, fused=True, capturable=on_gpu)

    def __call__(
        self, x: Tensor, y: Tensor, noise: Noise, beta: float | Tensor, rate: float | Tensor,
        weight: Tensor | None = None,
    ) -> None:  # fmt: skip
        """One step on a minibatch.

        Args:
            x: inputs ``(*lead, B, d)``; an axis of ``lead`` may be 1.
            y: targets ``(*lead, B)``.
            noise: of the pass.
            beta: weight of the KL, one number or one a replicate, ``(*lead)``.
            rate: learning rate.
            weight: of the examples, as y; none: 1.
        """
        flat, self.optimizer.param_groups[0]["lr"] = self.flat, rate
        if self.protocol.objective == "elbo":
            output, kl = self.stack(flat, x, noise, "analytic")
            loss = beta_elbo(output, y, kl, beta, self.likelihood, weight)  # (*lead)
        else:
            output, log_ratio = self.stack(flat, x, noise, "sampled")
            loss = iwae(output, y, log_ratio, self.likelihood)  # (*lead)
        flat.grad = None
        loss.sum().backward()
        if self.protocol.clip_norm is not None:
            norm = torch.linalg.vector_norm(flat.grad, dim=-1, keepdim=True)  # (*lead, 1)
            flat.grad.mul_((self.protocol.clip_norm / (norm + 1e-6)).clamp_(max=1.0))
        self.optimizer.step()


@dataclass
class _Held:
    """What a step reads, in memory that stays where it is, and its recording."""

    x: Tensor
    y: Tensor
    noise: Noise
    beta: Tensor  # a float would be fixed in the recording
    rate: Tensor | float  # a float where it is constant
    weight: Tensor | None
    runs: int = 0
    graph: torch.cuda.CUDAGraph | None = None

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Noise, Tensor, Tensor, Tensor | None]:
        return self.x, self.y, self.noise, self.beta, self.rate, self.weight


class ReplayedStep:
    """A step whose arguments are copied into buffers, a set for each batch size, so that a CUDA graph can repeat it.

    The first steps of a batch size run as they are, on a stream of their own; one more is recorded, the whole of it
    from the forward pass to Adam, and from then on it is replayed.

    Args:
        step: what to repeat.
        graph: False: nothing is recorded, and each step runs from the buffers; on the CPU that is all there is.
    """

    WARM_UP = 3

    def __init__(self, step: AutogradStep, graph: bool | None = None) -> None:
        self.step, self.device = step, step.flat.device
        graph = self.device.type == "cuda" if graph is None else graph
        self._stream = torch.cuda.Stream(self.device) if graph else None
        self._held: dict[int, _Held] = {}

    def __call__(
        self, x: Tensor, y: Tensor, noise: Noise, beta: float | Tensor, rate: float, weight: Tensor | None = None
    ) -> None:
        """One step on a minibatch; arguments, on the host or the device, as in :meth:`AutogradStep.__call__`."""
        held = self._held.get(x.shape[-2])
        if held is None:
            held = self._held[x.shape[-2]] = self._buffers(x, y, noise, beta, weight)
        held.beta.copy_(beta) if isinstance(beta, Tensor) else held.beta.fill_(beta)
        if isinstance(held.rate, Tensor):
            held.rate.fill_(rate)
        buffers = held.x, held.y, held.weight, *held.noise.eps, *held.noise.masks
        for buffer, t in zip(buffers, (x, y, weight, *noise.eps, *noise.masks)):
            if t is not None:
                buffer.copy_(staged(t, self.device), non_blocking=True)
        if self._stream is None:
            self.step(*held.arguments)
        elif held.graph is not None:
            held.graph.replay()
        else:
            self._warm_up_or_record(held)

    def _buffers(self, x: Tensor, y: Tensor, noise: Noise, beta: float | Tensor, weight: Tensor | None) -> _Held:
        def like(t: Tensor | None) -> Tensor | None:
            return None if t is None else torch.empty(t.shape, dtype=t.dtype, device=self.device)

        held_noise = Noise(noise.kind, tuple(map(like, noise.eps)), tuple(map(like, noise.masks)))
        shape = beta.shape if isinstance(beta, Tensor) else ()
        beta = self.step.flat.new_empty(shape, requires_grad=False)
        settings = self.step.protocol
        varies = settings.rate_schedule != "constant"  # and is float32, what the fused Adam of a GPU reads
        rate = torch.empty((), device=self.device) if varies else settings.learning_rate
        return _Held(like(x), like(y), held_noise, beta, rate, like(weight))

    def _warm_up_or_record(self, held: _Held) -> None:
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        if held.runs < self.WARM_UP:
            with torch.cuda.stream(self._stream):
                self.step(*held.arguments)
            held.runs += 1
        else:
            held.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(held.graph, stream=self._stream):  # records, and computes nothing
                self.step(*held.arguments)
        current.wait_stream(self._stream)
        if held.graph is not None:
            held.graph.replay()
