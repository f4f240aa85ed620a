"""Settings every test needs before torch, matplotlib and tqdm are imported, and one random state for each."""

from __future__ import annotations

import os
import signal
import sys

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started behind a shell; tests of interruptions need it
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("TQDM_DISABLE", "1")


@pytest.fixture(autouse=True)
def random_state():
    """The same before every test, whichever ran before it, and in whichever process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
