"""Two processes that train one model with FDN layers; run by test_with_pytorch.py with a folder to write to."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fdn.nn import FDNLinear, elbo_loss, forward, parameter_groups


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)  # the same model, then noise and data of one's own
    ic = {"condition": "input", "input_features": 3}
    model = DistributedDataParallel(nn.Sequential(FDNLinear(3, 8), nn.ReLU(), FDNLinear(8, 1, **ic)))
    start = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    torch.manual_seed(1 + rank)
    x, optimizer = torch.randn(16, 3), torch.optim.AdamW(parameter_groups(model, 0.01), lr=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        output, kl = forward(model, x)
        elbo_loss((output[:, 0] - x.sum(-1)).square(), kl, 32).backward()
        optimizer.step()
    parameters = nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.save({"start": start, "parameters": parameters, "kl": float(kl.detach().sum())}, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],), nprocs=2)
