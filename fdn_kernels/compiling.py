"""How the loops of the CPU path are compiled, and where they are kept."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import pickle
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import llvmlite.binding
import numba
from numba import config
from numba.core.caching import FunctionCache
from numba.core.serialize import dumps

_FEATURES = llvmlite.binding.get_host_cpu_features()
if _FEATURES.get("avx512f") and config.CPU_FEATURES is None:  # the compiler would use half of a vector
    config.CPU_FEATURES = f"{_FEATURES.flatten()},-prefer-256-bit"
# EXACT: multiply-adds may be contracted, nothing else is reordered. FAST: sums may be reordered too. NaN and infinity
# keep their meaning in both. INNER: for loops that others call. They are made part of their callers, since a shared one
# is optimised in one way by the process that compiles it and in another by those that load it, and rounds differently.
EXACT = {"fastmath": {"contract"}, "error_model": "numpy"}
FAST = {**EXACT, "fastmath": {"reassoc", "contract", "nsz", "arcp"}}
INNER = {**FAST, "forceinline": True}


# What is made part of loops in other files, which Numba does not look at
_PARTS = hashlib.sha256(Path(__file__).with_name("vector_math.py").read_bytes()).hexdigest()


class _Cache(FunctionCache):
    """The compiled versions of one loop on disk, where Numba would keep them: a file for each signature and processor.

    A cache may fail, the loop is then compiled once more: a file that is damaged or of other source does not count and
    is replaced, and what cannot be written is done without. There is no index, so that processes that write at once
    cannot exchange their files.
    """

    _said = False

    def __init__(self, function: FunctionType) -> None:
        self._trouble = None
        try:
            super().__init__(function)
            self._origin = numba.__version__, self._impl.locator.get_source_stamp(), _PARTS
        except Exception as error:  # there is no folder that can be written
            self._trouble, self._cache_path = error, None

    def _entry(self, sig: object, codegen: object) -> tuple[Path, bytes]:
        """The file of a signature, and all that it is made from."""
        key = self._index_key(sig, codegen)
        name = f"{self._impl.filename_base}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"
        return Path(self.cache_path, name), repr((self._origin, key)).encode()

    def load_overload(self, sig: object, target_context: object) -> object | None:
        target_context.refresh()
        if not self._trouble:
            try:
                path, origin = self._entry(sig, target_context.codegen())
                content = path.read_bytes()
                if content[:32] == hashlib.sha256(origin + content[32:]).digest():
                    return self._impl.rebuild(target_context, pickle.loads(content[32:]))
            except Exception:  # as if there were none
                pass
        return None

    def save_overload(self, sig: object, data: object) -> None:
        try:
            if self._trouble:
                raise self._trouble
            if not self._impl.check_cachable(data):  # which warns
                return
            path, origin = self._entry(sig, data.codegen)
            code = dumps(self._impl.reduce(data))
            self._impl.locator.ensure_cache_path()
            temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:16]}")
            try:
                temporary.write_bytes(hashlib.sha256(origin + code).digest() + code)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except Exception as error:
            if not _Cache._said and multiprocessing.parent_process() is None:  # once, and not by every worker
                logging.getLogger(__name__).warning(
                    "Compiled loops cannot be kept (%s): every process compiles them anew, for a minute or so. "
                    "NUMBA_CACHE_DIR may name a folder that can be written.", error
                )  # fmt: skip
            _Cache._said = True

    def flush(self) -> None:
        if not self._trouble:
            for path in Path(self.cache_path).glob(f"{self._impl.filename_base}.*.nbc"):
                path.unlink(missing_ok=True)


def njit(**options: object) -> Callable[[FunctionType], Callable]:
    """Numba's ``njit`` with a cache that may fail."""

    def decorate(function: FunctionType) -> Callable:
        loop = numba.njit(**options)(function)
        if hasattr(loop, "enable_caching"):  # it is the function itself where NUMBA_DISABLE_JIT is set
            loop._cache = _Cache(function)
        return loop

    return decorate
