"""The registered op's two functions, on canonical shapes: see :mod:`fdn_kernels.ops`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fdn_kernels.triton.launch import TILES, launch, product, splits
from fdn_kernels.triton.parts import Call, Part, join_rows, padded, pairs


def _gram(call: Call) -> Tensor:
    """G = sum of u u^T over the parameters' rows u of (mean matrix, mean bias): (R, BH + 1, BH + 1) in float64."""
    u = torch.cat([call.mean.flatten(1, 2), call.mean_bias.flatten(1, 2).unsqueeze(2)], 2).double()
    return u.mT @ u


def _with_one(z: Tensor, BH: int) -> Tensor:
    """(z, 1), (R, k, B, BH + 1), in float64."""
    z = z.double()
    return torch.cat([F.pad(z, (0, BH - z.shape[-1])), torch.ones_like(z[..., :1])], -1)


def linear(
    a: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: Tensor | None, seed: Tensor | None, draws: int, noise: str,
    kl: str, floor: float, prior_scale: float, stream: int, precision: str, keep_variance: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The op ``fdn::linear`` on canonical shapes; see :mod:`fdn_kernels.ops`.

    ``keep_variance``: for local noise, give the variance too; the backward, given it, need not compute it again.
    """
    call = Call(a, z, weight, bias, eps, seed, draws, noise, kl, floor, prior_scale, stream, precision)
    shape = (call.R, draws, call.B, call.d_out)
    y = a.new_empty(shape)
    keep_variance &= noise == "local"
    variance = a.new_empty(
        shape if noise == "moments" or keep_variance else 0, dtype=torch.float32 if keep_variance else a.dtype
    )
    term = torch.zeros((call.R, call.kl_draws, call.B) if kl != "none" else 0, dtype=torch.float32, device=a.device)
    with torch.cuda.device_of(a):
        for chunk in call.chunks():
            part = Part(call, chunk)
            mean = part.cut(part.mean_outputs())
            spread, kl_part = part.sums(kl)
            if noise == "local":
                chunk.of(y).copy_(torch.addcmul(mean, spread.sqrt(), part.eps))
            else:
                chunk.of(y).copy_(mean + spread if call.drawn else mean)
            if variance.dim() > 1:
                chunk.of(variance).copy_(spread)
            if kl_part.numel():
                term[:, chunk.draws, chunk.examples][:, : part.kl_draws] = kl_part[..., : part.n]
        if kl == "analytic":
            z1 = _with_one(z, call.BH)
            term += (0.5 * call.precision_of_prior * ((z1 @ _gram(call).unsqueeze(1)) * z1).sum(-1)).float()
    return y, variance, term


class _Gradients:
    """Sums over the chunks of a backward, float32 and padded: of the matrices, and of one chunk's (a, 1) and z."""

    def __init__(self, call: Call):
        self.call = call
        self.mean, self.rho = torch.zeros_like(call.mean), torch.zeros_like(call.rho)
        self.mean_bias, self.rho_bias = torch.zeros_like(call.mean_bias), torch.zeros_like(call.rho_bias)

    def begin(self, part: Part) -> None:
        self.a1 = part.empty(self.call.R, part.draws, part.examples, self.call.DI)
        self.z = torch.zeros_like(part.z)

    def of_means(self, part: Part, g: Tensor, need_a: bool, need_z: bool) -> None:
        """Through the mean output, whose gradient is g (R, k, B, DO)."""
        call = self.call
        if not call.LP:
            means = part.empty(call.R, part.n, call.DO, call.DI)
            product(part.by_example(g).mT, part.by_example(part.a1), means, call.precision)
            if need_a:
                product(part.by_example(g), part.means(), part.by_example(self.a1), call.precision)
            if need_z:  # sums over the inputs of each output, then over outputs
                each = part.empty(call.R, call.DO, part.n, call.BH)
                product(means.transpose(1, 2), call.mean, each, call.precision)
                self.z[:, :, : part.n] += each.sum(1, keepdim=True)
            product(means.permute(0, 2, 3, 1), part.z[:, :, : part.n], self.mean, call.precision, add=True)
            self.mean_bias += means.sum(1)
            return
        for at, a1, z, outer in part.outer_parts():
            rows = at.of(g).flatten(1, 2).unsqueeze(1)  # (R, 1, n, DO)
            product(rows.mT, outer, self.mean.flatten(2).unsqueeze(1), call.precision, add=True)
            product(rows.mT, a1.unsqueeze(1), self.mean_bias.unsqueeze(1), call.precision, add=True)
            if need_a or need_z:
                n, draws = a1.shape[1], at.draws.stop - at.draws.start
                t = product(rows, call.mean.flatten(2).unsqueeze(1), outer, call.precision)
                t = t.view(call.R, n, call.DI, call.BH)
                grad_a1 = product(rows, call.mean_bias.unsqueeze(1), part.empty(call.R, 1, n, call.DI), call.precision)
                grad_a1 = grad_a1.squeeze(1) + (t @ z.unsqueeze(3)).squeeze(3)
                at.of(self.a1).copy_(grad_a1.view(at.of(self.a1).shape))
                grad_z = (a1.unsqueeze(2) @ t).view(call.R, draws, n // draws, call.BH)
                at.of(self.z).add_(grad_z if self.z.shape[1] > 1 else grad_z.sum(1, keepdim=True))

    def of_scales(self, part: Part, w: Tensor, grad_kl: Tensor, kl: str, need_a: bool, need_z: bool) -> None:
        """Through the spread, whose sums have the gradient w (R, k, B, DO), and the KL."""
        call = self.call
        grad_x, grad_factors = call.nothing, call.nothing
        if call.spread and not call.LP:
            grad_factors = part.correlate(w)
            if need_a:
                grad_x = part.contract(part.spreads("none")[0], w)
        elif call.spread:
            grad_x = torch.empty_like(self.a1)
        given = part.arguments | {"w": w, "grad_factors": grad_factors, "grad_kl": grad_kl, "KL": kl}
        if need_z or need_a and call.LP:
            tile = TILES[call.wide + "rows"]
            programs = part.scale_draws * part.examples // tile["BB"]
            parts = splits(programs * call.R, call.DI // tile["BI"])
            z = part.empty(parts, call.R, part.scale_draws, part.examples, call.BH)
            mean_t = pairs(call.mean.mT) if kl == "sampled" else call.nothing
            launch(
                call.wide + "rows", (programs, parts, call.R), **given, rho_t=pairs(call.rho.mT), mean_t=mean_t,
                grad_x=grad_x, grad_z=z,
            )  # fmt: skip
            z = z.sum(0)
            self.z += z if self.z.shape[1] > 1 else z.sum(1, keepdim=True)
        if call.spread and need_a:
            self.a1 += grad_x if not call.squared else 2 * part.a1 * grad_x
        tile = TILES[call.wide + "weights"]
        programs = call.DO // tile["BO"] * (call.DI // tile["BI"])
        parts = splits(programs * call.R, part.scale_draws * part.examples // tile["BB"])
        shape = (parts, *call.rho.shape)
        rho, rho_bias = part.empty(*shape), part.empty(*shape[:-1])
        mean, mean_bias = (part.empty(*shape), part.empty(*shape[:-1])) if kl == "sampled" else 2 * [call.nothing]
        launch(
            call.wide + "weights", (programs, parts, call.R), **given, z_t=pairs(part.z.mT), grad_rho=rho,
            grad_rho_bias=rho_bias, grad_mean=mean, grad_mean_bias=mean_bias,
        )  # fmt: skip
        self.rho += rho.sum(0)
        self.rho_bias += rho_bias.sum(0)
        if kl == "sampled":
            self.mean += mean.sum(0)
            self.mean_bias += mean_bias.sum(0)


def linear_backward(
    grad_y: Tensor, grad_variance: Tensor, grad_kl: Tensor, a: Tensor, z: Tensor, weight: Tensor, bias: Tensor,
    eps: Tensor | None, seed: Tensor | None, draws: int, noise: str, kl: str, floor: float, prior_scale: float,
    stream: int, precision: str, need_a: bool, need_z: bool, variance: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The op ``fdn::linear_backward`` on canonical shapes.

    ``variance`` from :func:`linear` spares local noise a pass.
    """
    call = Call(a, z, weight, bias, eps, seed, draws, noise, kl, floor, prior_scale, stream, precision)
    grad_a = torch.zeros(a.shape if need_a else 0, dtype=torch.float32, device=a.device)
    grad_z = torch.zeros(z.shape if need_z else 0, dtype=torch.float32, device=a.device)
    sums = _Gradients(call)
    with torch.cuda.device_of(a):
        for chunk in call.chunks():
            part = Part(call, chunk)
            sums.begin(part)
            g = chunk.of(grad_y)
            sums.of_means(part, padded(g, part.examples, call.DO), need_a, need_z)
            if noise == "local":
                spread = part.sums("none")[0] if variance is None else chunk.of(variance)
                w = 0.5 * g.float() * part.eps * spread.masked_fill(spread == 0, math.inf).rsqrt()
            else:
                w = chunk.of(grad_variance) if noise == "moments" else g
            if call.spread or kl != "none":
                part_kl = part.kl_gradient(grad_kl)
                sums.of_scales(part, padded(w, part.examples, call.DO), part_kl, kl, need_a, need_z)
            if need_a:
                found = sums.a1[:, :, : part.n, : call.d_in]
                chunk.of(grad_a).add_(found if a.shape[1] > 1 else found.sum(1, keepdim=True))
            if need_z:
                chunk.of(grad_z).add_(sums.z[:, :, : part.n, : call.h])
        if kl == "analytic":
            z1 = _with_one(z, call.BH)  # (R, k, B, BH + 1)
            weighted = call.precision_of_prior * grad_kl.double().unsqueeze(3)  # (R, k, B, 1)
            if need_z:
                grad_z += (weighted * (z1 @ _gram(call).unsqueeze(1)))[..., : call.h].float()
            moment = z1.flatten(1, 2).mT @ (weighted * z1).flatten(1, 2)  # (R, BH + 1, BH + 1)
            rows = torch.cat([call.mean, call.mean_bias.unsqueeze(3)], 3).double() @ moment.unsqueeze(1)
            sums.mean += rows[..., :-1].float()
            sums.mean_bias += rows[..., -1].float()
    keep = (slice(None), slice(call.d_out), slice(call.d_in + 1))
    grad_weight = join_rows(sums.mean[keep], sums.rho[keep])[..., : call.h]
    grad_bias = join_rows(sums.mean_bias[keep], sums.rho_bias[keep])
    return grad_a.to(a.dtype), grad_z.to(z.dtype), grad_weight.to(weight.dtype), grad_bias.to(bias.dtype)
