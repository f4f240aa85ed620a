"""A call in the kernels' order, and its parts: draws and examples whose scratch fits, padded to whole tiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from fdn_kernels.philox import slices
from fdn_kernels.reference import split_parameters
from fdn_kernels.triton.launch import GRID_LIMIT, TILES, launch, product, splits

SCRATCH = 1 << 26  # elements of intermediate results alive at once (256 MiB)


def ceil(n: int, step: int) -> int:
    """The smallest multiple of step that is at least n."""
    return -(-n // step) * step


def padded(t: Tensor, *sizes: int) -> Tensor:
    """t in float32, contiguous, its last dimensions padded with zeros."""
    sizes = (*t.shape[: t.dim() - len(sizes)], *sizes)
    if t.shape == sizes:
        return t.float().contiguous()
    out = t.new_zeros(sizes, dtype=torch.float32)
    out[tuple(slice(n) for n in t.shape)] = t
    return out


def split_rows(t: Tensor, d_in: int) -> tuple[Tensor, Tensor]:
    """Rows (R, 2P, ...) as those of means and of rhos, each (R, d_out, d_in + 1, ...), the bias last."""
    d_out = t.shape[1] // (2 * (d_in + 1))
    n = d_out * d_in
    weight_means, weight_rhos, means, rhos = t.split([n, n, d_out, d_out], 1)
    pairs = (weight_means, means), (weight_rhos, rhos)
    return tuple(torch.cat([w.unflatten(1, (d_out, d_in)), b.unsqueeze(2)], 2) for w, b in pairs)


def join_rows(means: Tensor, rhos: Tensor) -> Tensor:
    """The inverse of :func:`split_rows`."""
    parts = (means[:, :, :-1], rhos[:, :, :-1], means[:, :, -1:], rhos[:, :, -1:])
    return torch.cat([t.flatten(1, 2) for t in parts], 1)


def pairs(t: Tensor) -> Tensor:
    """The last dimension in the order of :func:`fdn_kernels.triton.tile.paired`."""
    return t.unflatten(-1, (-1, 4, 2)).transpose(-1, -2).flatten(-3).contiguous()


@dataclass(frozen=True)
class Chunk:
    """Draws and examples that are computed at once."""

    draws: slice
    examples: slice

    def of(self, t: Tensor) -> Tensor:
        """The part of (R, K or 1, B or 1, ...)."""
        return t[:, self.draws if t.shape[1] > 1 else slice(None), self.examples if t.shape[2] > 1 else slice(None)]


def chunks(draws: int, k_step: int, examples: int, b_step: int) -> Iterator[Chunk]:
    """All draws and examples, at most so many of each at once."""
    return itertools.starmap(Chunk, itertools.product(slices(draws, k_step), slices(examples, b_step)))


class Call:
    """One call: its matrices in the kernels' order, and how it is cut into chunks."""

    def __init__(self, a, z, weight, bias, eps, seed, draws, noise, kl, floor, prior_scale, stream, precision):
        self.a, self.z = a, z
        self.R, _, self.B, self.d_in = a.shape
        self.K, self.h = draws, z.shape[-1]
        if self.R > GRID_LIMIT:
            raise ValueError(f"the Triton kernel takes up to {GRID_LIMIT} replicates at once, not {self.R}: split them")
        self.d_out = weight.shape[-2] // (2 * (self.d_in + 1))
        self.noise, self.kl, self.stream, self.precision = noise, kl, stream, precision
        self.settings = {"floor": floor, "inverse_prior": 1 / prior_scale}
        self.precision_of_prior = prior_scale**-2
        self.spread = noise != "none"
        self.squared = noise in ("local", "moments")
        self.drawn = noise not in ("none", "moments")
        # one draw needs no second kind; without a distribution that draws share there is nothing to hold
        self.LP = z.shape[1] > 1 or draws == 1 or kl == "sampled" or noise == "independent"
        self.kl_draws = draws if z.shape[1] > 1 or kl == "sampled" else 1
        self._set_sizes()
        self.shared_noise = None  # of the last draws
        self.mean, self.rho = (padded(t, self.DO, self.DI, self.BH) for t in split_rows(weight, self.d_in))
        self.mean_bias, self.rho_bias = (padded(t, self.DO, self.DI) for t in split_rows(bias, self.d_in))
        self.eps, self.seed = eps if self.drawn else None, seed
        self.nothing = torch.empty(16, dtype=torch.float32, device=a.device)  # a stand-in that is never read

    def _set_sizes(self) -> None:
        """Sizes padded to whole tiles."""
        self.BH = max(16, triton.next_power_of_2(self.h))
        self.wide = "wide " if self.BH > 32 or self.kl == "sampled" else ""
        names = [self.wide + name for name in ("forward", "rows", "weights")]
        if self.noise == "shared" and not self.LP:
            names += ["contract", "correlate"]
        tiles = [TILES[name].sizes for name in names]
        self.DO = ceil(self.d_out, max(t.get(name, 1) for t in tiles for name in ("BO", "BP", "BQ")))
        self.DI = ceil(self.d_in + 1, max(t.get(name, 1) for t in tiles for name in ("BI", "BP", "BQ")))
        self.examples = max(t["BB"] for t in tiles)  # examples are padded to multiples of these
        independent = self.noise == "independent"
        if self.DO * self.DI * (self.examples if independent else 1) >= 2**31:
            raise ValueError(
                f"the Triton kernel counts a layer's parameters{' times 64 examples' * independent} in 31 bits; given "
                f"{self.d_in} inputs and {self.d_out} outputs: split the outputs"
            )

    def chunks(self) -> Iterator[Chunk]:
        """Rectangles of draws and examples whose scratch fits ``SCRATCH``.

        IC: of all draws, so that each mean and scale is made once.
        """
        replicates, per_pair = max(1, self.R), 3 * self.DI + 4 * self.DO
        if self.noise == "independent":
            per_pair += self.DO * self.DI
        if self.LP:
            pairs = SCRATCH // (replicates * per_pair)
            b_step = max(64, min(ceil(self.B, 64), pairs // self.K // 64 * 64))
            k_step = max(4, pairs // b_step // 4 * 4)
            if self.noise == "shared":
                k_step = max(4, min(k_step, SCRATCH // (replicates * max(1, self.DO) * self.DI) // 4 * 4))
        else:
            b_step = max(64, SCRATCH // (replicates * (self.K * per_pair + 4 * self.DO * self.DI)) // 64 * 64)
            k_step = self.K
        return chunks(self.K, k_step, self.B, b_step)


class Part:
    """A chunk's inputs, and the steps that forward and backward share."""

    def __init__(self, call: Call, chunk: Chunk):
        self.call, self.chunk = call, chunk
        self.draws = chunk.draws.stop - chunk.draws.start
        self.n = chunk.examples.stop - chunk.examples.start
        self.examples = ceil(self.n, call.examples)
        self.z = padded(chunk.of(call.z), self.examples, call.BH)  # (R, 1 or k, B, BH)
        a = chunk.of(call.a)
        self.a1 = a.new_zeros((*a.shape[:2], self.examples, call.DI), dtype=torch.float32)  # (a, 1)
        self.a1[:, :, : self.n, : call.d_in] = a
        self.a1[:, :, : self.n, call.d_in] = 1
        self.x = self.a1.square() if call.squared else self.a1
        self.eps = call.nothing
        if call.noise == "shared":
            if call.shared_noise is None or call.shared_noise[0] != chunk.draws:
                call.shared_noise = chunk.draws, self._noise()
            self.eps = call.shared_noise[1]
        elif call.drawn:
            self.eps = self._noise()

    def _noise(self) -> Tensor:
        """(R, k, B, d_out) for local, else (R, k, 1 or B, DO, DI)."""
        call, chunk = self.call, self.chunk
        local = call.noise == "local"
        b = {"shared": 1, "independent": self.examples, "local": self.n}[call.noise]
        if call.eps is not None:
            eps = chunk.of(call.eps)
            if local:
                return eps.float()
            weights, biases = split_parameters(eps, call.d_in)
            eps = torch.cat([weights, biases.unsqueeze(-1)], -1)
            return padded(eps, b, call.DO, call.DI)
        eps = self.empty(call.R, self.draws, b, *((call.d_out,) if local else (call.DO, call.DI)))
        first = chunk.draws.start
        programs = triton.cdiv(math.prod(eps.shape[2:]), TILES["noise"]["BN"])
        groups = (chunk.draws.stop + 3) // 4 - first // 4
        launch(
            "noise", (programs, groups, call.R), seeds=call.seed.contiguous(), eps=eps, draws=self.draws, examples=b,
            d_in=call.d_in, d_out=call.d_out, DO=call.DO, DI=call.DI, first_draw=first,
            first_example=0 if call.noise == "shared" else chunk.examples.start,
            noise_stream=call.stream - (call.stream >> 31 << 32), LOCAL=local,
        )  # fmt: skip
        return eps

    @property
    def arguments(self) -> dict:
        """What the kernels that compute scales take."""
        call = self.call
        eps = self.eps if call.drawn and call.noise != "local" else call.nothing
        e_r, e_k, e_b = eps.stride()[:3] if eps.dim() > 1 else (0, 0, 0)
        return call.settings | {
            "z": self.z, "rho": call.rho, "rho_bias": call.rho_bias, "mean": call.mean, "mean_bias": call.mean_bias,
            "x": self.x, "eps": eps,
            "z_r": self.z.stride(0), "z_k": self.z.stride(1) if self.z.shape[1] > 1 else 0,
            "x_r": self.x.stride(0), "x_k": self.x.stride(1) if self.x.shape[1] > 1 else 0,
            "e_r": e_r, "e_k": e_k, "e_b": e_b if call.noise == "independent" else 0,
            "draws": self.scale_draws, "examples": self.examples, "DO": call.DO, "DI": call.DI,
            "NOISE": call.noise, "LP": call.LP, "PRECISION": call.precision, "BH": call.BH,
        }  # fmt: skip

    @property
    def scale_draws(self) -> int:
        """Draws that have scales of their own."""
        return self.draws if self.call.LP else 1

    @property
    def kl_draws(self) -> int:
        """Draws of this chunk that have a KL."""
        return max(0, min(self.chunk.draws.stop, self.call.kl_draws) - self.chunk.draws.start)

    def kl_gradient(self, grad_kl: Tensor) -> Tensor:
        """The KL's gradient for every scale, (R, k, B), zero for draws without a KL."""
        out = torch.zeros(self.call.R, self.scale_draws, self.examples, dtype=torch.float32, device=grad_kl.device)
        if self.kl_draws > 0 and self.call.kl != "none":
            found = grad_kl[:, self.chunk.draws, self.chunk.examples]
            out[:, : found.shape[1], : self.n] = found
        return out

    def empty(self, *sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=torch.float32, device=self.call.a.device)

    # -- scales

    def spreads(self, kl: str) -> tuple[Tensor, Tensor]:
        """LP: sums of factors times inputs, (R, k, B, DO); IC: the factors, (R, B, DO, DI).

        And the KL's part, (R, k, B).
        """
        call, tile = self.call, TILES[self.call.wide + "forward"]
        programs = self.scale_draws * self.examples // tile["BB"]
        parts = splits(programs * call.R, call.DO // tile["BO"])
        shape = (call.R, self.draws, self.examples, call.DO) if call.LP else (call.R, self.examples, call.DO, call.DI)
        found = self.empty(*shape)
        terms = self.empty(parts, call.R, self.kl_draws if kl != "none" else 0, self.examples)
        if call.LP and not call.spread and kl == "none":
            return found, terms[0]
        launch(
            call.wide + "forward", (programs, parts, call.R), **self.arguments, spread=found, factors=found, kl=terms,
            d_in=call.d_in, d_out=call.d_out, kl_draws=self.kl_draws, KL=kl if self.kl_draws else "none",
        )  # fmt: skip
        return found, terms.sum(0)

    def sums(self, kl: str) -> tuple[Tensor, Tensor]:
        """Sums of factors times inputs, without padding, (R, k, B, d_out); and the KL's part, (R, k, B)."""
        found, terms = self.spreads(kl)
        return self.cut(found if self.call.LP or not self.call.spread else self.contract(found)), terms

    # -- means

    def outer_parts(self) -> Iterator[tuple[Chunk, Tensor, Tensor, Tensor]]:
        """LP: a chunk, its (a, 1), its z, and both's outer product (R, 1, n, DI BH), in parts that fit the scratch."""
        call = self.call
        rows = max(64, SCRATCH // (max(1, call.R) * call.DI * call.BH))
        b_step = min(self.examples, rows)
        k_step = max(1, rows // b_step)
        for at in chunks(self.draws, k_step, self.examples, b_step):
            n = at.draws.stop - at.draws.start
            a1, z = (at.of(t).expand(-1, n, -1, -1).flatten(1, 2) for t in (self.a1, self.z))
            yield at, a1, z, (a1.unsqueeze(3) * z.unsqueeze(2)).flatten(2).unsqueeze(1)

    def means(self) -> Tensor:
        """IC: (R, B, DO, DI)."""
        call = self.call
        out = self.empty(call.R, 1, self.examples, call.DO * call.DI)
        product(self.z, call.mean.flatten(1, 2).mT.unsqueeze(1), out, call.precision)
        return out.squeeze(1).unflatten(2, (call.DO, call.DI)).add_(call.mean_bias.unsqueeze(1))

    def mean_outputs(self) -> Tensor:
        """(R, k, B, DO)."""
        call = self.call
        y = self.empty(call.R, self.draws, self.examples, call.DO)
        if not call.LP:
            product(self.by_example(self.a1), self.means().mT, self.by_example(y), call.precision)
            return y
        for at, a1, _, outer in self.outer_parts():
            part = self.empty(call.R, 1, a1.shape[1], call.DO)
            product(outer, call.mean.flatten(2).mT.unsqueeze(1), part, call.precision)
            product(a1.unsqueeze(1), call.mean_bias.mT.unsqueeze(1), part, call.precision, add=True)
            at.of(y).copy_(part.view(at.of(y).shape))
        return y

    # -- IC: factors times inputs, and the gradients of both

    def contract(self, factors: Tensor, x: Tensor | None = None) -> Tensor:
        """Sums over inputs, (R, k, B, DO), of factors times inputs.

        Or for x (R, k, B, DO) the sums over outputs, (R, k, B, DI).
        """
        call, tile = self.call, TILES["contract"]
        over_inputs = x is None
        x = self.x.expand(-1, self.draws, -1, -1) if over_inputs else x
        out = self.empty(call.R, self.draws, self.examples, call.DO if over_inputs else call.DI)
        if call.squared:
            product(self.by_example(x), factors.mT if over_inputs else factors, self.by_example(out), call.precision)
            return out
        programs = self.examples // tile["BB"] * triton.cdiv(self.draws, tile["BK"])
        s_p, s_q = (call.DI, 1) if over_inputs else (1, call.DI)
        launch(
            "contract", (programs, out.shape[3] // tile["BP"], call.R), scale=factors, eps=self.eps, x=x, out=out,
            s_r=factors.stride(0), s_b=factors.stride(1), s_p=s_p, s_q=s_q, e_r=self.eps.stride(0),
            e_k=self.eps.stride(1), x_r=x.stride(0), x_k=x.stride(1), o_r=out.stride(0), o_k=out.stride(1),
            draws=self.draws, examples=self.examples, P=out.shape[3], Q=x.shape[3],
        )  # fmt: skip
        return out

    def correlate(self, w: Tensor) -> Tensor:
        """Gradient of the factors (of the scales for shared noise) from that of the sums, (R, B, DO, DI)."""
        call, tile = self.call, TILES["correlate"]
        x = self.x.expand(-1, self.draws, -1, -1)
        if call.squared:
            out = self.x.new_zeros(call.R, self.examples, call.DO, call.DI)
            product(self.by_example(w).mT, self.by_example(x), out[:, : self.n], call.precision)
            return out
        out = self.empty(call.R, self.examples, call.DO, call.DI)
        programs = call.DO // tile["BO"] * (call.DI // tile["BI"])
        launch(
            "correlate", (programs, self.examples // tile["BB"], call.R), w=w, x=x, eps=self.eps, out=out,
            w_r=w.stride(0), w_k=w.stride(1), x_r=x.stride(0), x_k=x.stride(1), e_r=self.eps.stride(0),
            e_k=self.eps.stride(1), draws=self.draws, examples=self.examples, DO=call.DO, DI=call.DI,
        )  # fmt: skip
        return out

    def by_example(self, t: Tensor) -> Tensor:
        """(R, 1 or k, B, n) as a matrix (k, n) for every example that is no padding, (R, B, k, n)."""
        return t.expand(-1, self.draws, -1, -1)[:, :, : self.n].transpose(1, 2)

    def cut(self, t: Tensor) -> Tensor:
        """(R, k, B, DO) without padding."""
        return t[:, :, : self.n, : self.call.d_out]
