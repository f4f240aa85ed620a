"""Which backend a call takes, and what is said about it."""

from __future__ import annotations

import re
import subprocess
import sys
import types
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version

from fdn_kernels import backend_of, backends, fdn_linear


def _input(kind: str = "cuda", dtype: torch.dtype = torch.float32, h: int = 16):
    """What the choice looks at, on any device."""
    return SimpleNamespace(device=torch.device(kind), dtype=dtype, shape=(1, 5, h))


@pytest.fixture
def gpu(monkeypatch):
    """A stand-in for a machine with a GPU: its properties, and the versions of what drives it."""
    properties = SimpleNamespace(major=9, minor=0, name="H100")
    triton = types.ModuleType("triton")
    triton.__version__ = "3.7.1"
    monkeypatch.setattr(backends, "_TRITON_INSTALLED", True)
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)

    def change(**changes):
        backends._gpu_obstacle.forget()
        backends._warn.forget()
        for name, value in changes.items():
            if name == "version":
                triton.__version__ = value
            elif name == "hip":
                monkeypatch.setattr(torch.version, "hip", value)
            else:
                setattr(properties, name, value)

    change()
    yield change
    change()


@pytest.mark.parametrize(("major", "minor"), [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
@pytest.mark.parametrize("version", ["3.5.0", "3.6.0", "3.7.1+git1234", "3.10.0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_gpu_for_which_the_kernels_compile_takes_triton(major, minor, version, dtype, gpu):
    gpu(major=major, minor=minor, version=version)
    name, reason = backend_of(_input(dtype=dtype), _input(h=128))
    assert name == "triton" and "compiles" in reason
    assert backend_of(_input(), _input(), backend="triton")[0] == "triton"


REFUSED = {  # what is changed, the inputs, and what is said
    "an old GPU": ({"major": 7, "minor": 5, "name": "T4"}, {}, "capabilities 8.x, 9.x, 10.x, 12.x, and T4 has 7.5"),
    "Triton 3.2": ({"version": "3.2.0"}, {}, "Triton 3.5 or newer (PyTorch 2.9), not 3.2.0"),
    "Triton 3.4": ({"version": "3.4.0"}, {}, "Triton 3.5 or newer (PyTorch 2.9), not 3.4.0"),
    "ROCm": ({"hip": "6.4", "major": 9, "minor": 4}, {}, "AMD GPU (ROCm 6.4), and it is written for NVIDIA's"),
    "Apple": ({}, {"kind": "mps"}, "on the device 'mps', and it needs an NVIDIA GPU"),
    "Intel": ({}, {"kind": "xpu"}, "on the device 'xpu', and it needs an NVIDIA GPU"),
    "float64": ({}, {"dtype": torch.float64}, "float32, bfloat16 and float16, and the inputs are torch.float64"),
    "a wide hypernetwork": ({}, {"h": 129}, "width up to 128 for kl 'analytic', not 129"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_triton_cannot_do_is_refused_in_a_sentence_and_else_said_once(case, gpu):
    changes, given, message = REFUSED[case]
    gpu(**changes)
    a = z = _input(**given)
    with pytest.raises(RuntimeError, match=re.escape(message)):
        backend_of(a, z, backend="triton")
    name, reason = backend_of(a, z)
    assert name == "torch" and message in reason
    with pytest.warns(UserWarning, match=re.escape(message)) as said:
        for _ in range(3):
            assert backends.choose(a, z, "analytic", "auto") == "torch"
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backends.choose(a, z, "analytic", "torch") == "torch"  # who asks for it knows it


def test_a_sampled_kl_takes_narrower_hypernetworks(gpu):
    assert backend_of(_input(), _input(h=64), "sampled")[0] == "triton"
    assert backend_of(_input(), _input(h=65), "sampled")[0] == "torch"


def test_a_triton_that_cannot_be_imported_is_said(gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "cannot be imported (ModuleNotFoundError" in backend_of(_input(), _input())[1]


def test_on_the_cpu_nothing_is_said():
    a, z, weight, bias = torch.ones(1, 2, 3), torch.ones(1, 2, 4), torch.ones(8, 4), torch.ones(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fdn_linear(a, z, weight, bias, noise="none")
    name, reason = backend_of(a, z)
    assert name == "torch" and ("'cpu'" in reason or "installed" in reason)
    assert backend_of(a, z, backend="reference") == ("reference", "it was asked for")
    for wrong in ({"backend": "cuda"}, {"kl": "exact"}):
        with pytest.raises(ValueError, match="expected one of analytic, none, sampled, and one of auto, triton"):
            backend_of(a, z, **wrong)


def test_autocast_decides_the_type(gpu):
    double, single = _input("cpu", torch.float64), _input("cpu")
    assert backends.computed_type(single) == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert backends.computed_type(single) == torch.bfloat16
        assert backends.computed_type(double) == torch.float64


def test_the_package_asks_for_versions_that_compile_the_kernels():
    tomllib = pytest.importorskip("tomllib")
    with open(Path(__file__).parents[2] / "pyproject.toml", "rb") as file:
        asked = {r.name: r.specifier for r in map(Requirement, tomllib.load(file)["project"]["dependencies"])}
    oldest = Version(".".join(map(str, backends.TRITON_VERSION)))
    assert oldest in asked["triton"] and Version("3.4") not in asked["triton"]
    assert Version("2.9") in asked["torch"] and Version("2.8") not in asked["torch"]  # 2.9 comes with Triton 3.5


def test_importing_the_package_imports_no_numba_and_changes_none_of_its_settings():
    """Takes as long as importing PyTorch does, in two processes of their own."""
    fresh = "import sys, fdn_kernels; assert 'numba' not in sys.modules"
    imported = """
from numba import config
def settings():
    return {name: repr(value) for name, value in vars(config).items() if name.isupper()}
before = settings()
import fdn_kernels, torch
x = torch.ones(1, 2, 3), torch.ones(1, 2, 4), torch.ones(8, 4), torch.ones(8)
fdn_kernels.fdn_linear(*x, noise="shared", seed=0)
assert settings() == before
"""
    for program in (fresh, imported):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr
