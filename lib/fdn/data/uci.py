"""The three UCI data sets: found on disk or downloaded, verified, read and split.

A file is looked for in the folder named by FDN_DATA_DIR, then in data/raw/, then in pooch's cache, where
downloads are kept: the cache outlives this checkout, and data/raw/ stays the reader's own. The archive packs
its zips anew for every request, so what is verified is the sha256 of the extracted file.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tempfile
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from threading import Thread
from urllib.parse import urljoin

import numpy as np
import pandas as pd
import platformdirs

from fdn import paths
from fdn.data.dataset import Dataset
from fdn.data.splits import feature_band_split
from fdn.errors import UserError

PATIENCE = 8.0  # seconds to wait for a first answer: three sets without a network end within 30 s
STALL = 20.0  # seconds between two pieces of a download
CACHE = "download cache"
RETRIES = 2  # the archive answers 502 now and then


@dataclass(frozen=True)
class Source:
    """One UCI file: its checksum, address and citation, and its first columns, the target last."""

    file: str
    sha256: str
    url: str
    columns: tuple[str, ...]
    citation: str

    @property
    def how_to_get(self) -> str:
        """What to do by hand, as one clause."""
        place = "data/raw/ or the folder named by FDN_DATA_DIR"
        return f"download {self.url}, unpack {self.file} and put it into {place}"


SOURCES = {
    "airfoil": Source(
        file="airfoil_self_noise.dat",
        sha256="10ee06e6cfb27dae6b44213d421d217012fb1f9b697592e73a4e4016b52d425f",
        url="https://archive.ics.uci.edu/static/public/291/airfoil+self+noise.zip",
        columns=("frequency [Hz]", "angle of attack [deg]", "chord length [m]", "free-stream velocity [m/s]",
                 "suction side displacement thickness [m]", "sound pressure level [dB]"),
        citation="T. Brooks, D. Pope, M. Marcolini, Airfoil Self-Noise (1989), doi:10.24432/C5VW2C",
    ),
    "ccpp": Source(
        file="Folds5x2_pp.xlsx",
        sha256="ccd490981db2a2f079963b3d9f0aea30d9d338900a0285428dfc6385396f4651",
        url="https://archive.ics.uci.edu/static/public/294/combined+cycle+power+plant.zip",
        columns=("ambient temperature AT [deg C]", "exhaust vacuum V [cm Hg]", "ambient pressure AP [mbar]",
                 "relative humidity RH [%]", "electrical energy output PE [MW]"),
        citation="P. Tufekci, H. Kaya, Combined Cycle Power Plant (2014), doi:10.24432/C5002N",
    ),
    "energy": Source(
        file="ENB2012_data.xlsx",
        sha256="0089fcffc1415e41e2ff63730cca5280efe54fc43d722dfde1b0aaa808e35dc4",
        url="https://archive.ics.uci.edu/static/public/242/energy+efficiency.zip",
        columns=("relative compactness X1", "surface area X2 [m^2]", "wall area X3 [m^2]",
                 "roof area X4 [m^2]", "overall height X5 [m]", "orientation X6", "glazing area X7",
                 "glazing area distribution X8", "heating load Y1 [kWh/m^2]"),
        citation="A. Tsanas, A. Xifara, Energy Efficiency (2012), doi:10.24432/C51307",
    ),
}  # fmt: skip


def load(name: str) -> Dataset:
    """UCI data set ``airfoil``, ``ccpp`` or ``energy``, split by the band of its column 0 and standardised.

    Columns and units are in ``SOURCES[name].columns``; see ``feature_band_split`` for the split.

    Raises:
        UserError: the file is damaged, or is nowhere to be found and cannot be downloaded.

    Source: the paper's section on real data; Brooks et al., Tufekci and Kaya, Tsanas and Xifara (CC BY 4.0).
    """
    source = SOURCES[name]
    values = _read(name, fetch(name))  # (N, d + 1)
    return feature_band_split(
        values[:, :-1], values[:, -1],
        name=name, feature_names=source.columns[:-1], target_name=source.columns[-1],
        source=f"{source.citation}, CC BY 4.0, {source.file}, sha256 {source.sha256}",
    )  # fmt: skip


def find(name: str) -> tuple[str, Path] | None:
    """The first place that holds the file of a data set, as (label, path), or None; downloads nothing."""
    places = [("data/raw", paths.DATA_RAW), (CACHE, cache_dir())]
    if os.environ.get("FDN_DATA_DIR"):
        places.insert(0, ("FDN_DATA_DIR", Path(os.environ["FDN_DATA_DIR"])))
    files = ((label, folder / SOURCES[name].file) for label, folder in places)
    return next(((label, path) for label, path in files if path.is_file()), None)


def fetch(name: str) -> Path:
    """Path of the verified file of a data set, downloaded if no place holds it.

    Raises:
        UserError: the file is damaged, or is nowhere to be found and cannot be downloaded.
    """
    source = SOURCES[name]
    if found := find(name):
        label, path = found
        if not (damage := _damage(name, _contents(path))):
            return path
        if label != CACHE:  # of the reader's own; a download is made again
            raise UserError(
                f"{path} ({label}) is damaged or another version: {damage}; delete it, or {source.how_to_get}"
            )
    if os.environ.get("FDN_OFFLINE", "0") not in ("", "0"):
        raise _not_found(name, "FDN_OFFLINE forbids to download it")
    if not _answers(source.url):
        raise _not_found(name, f"{urljoin(source.url, '/')} did not answer (no network?)")
    import pooch  # here, because it brings a tqdm that warns in notebooks

    pooch.get_logger().setLevel("WARNING")  # the progress bar says the rest
    archive = pooch.create(
        path=_writable(cache_dir()), base_url="", retry_if_failed=RETRIES,
        registry={source.file: source.sha256}, urls={source.file: source.url},
    )  # fmt: skip
    try:
        return Path(archive.fetch(source.file, downloader=lambda url, out, _: _download(name, url, out)))
    except (ValueError, OSError) as error:  # OSError holds those of requests and of the disk
        raise _not_found(name, f"the download failed: {error}") from error


def status() -> pd.DataFrame:
    """What is on disk, one row per data set, without downloading.

    Columns: name, file, found (the place, or "missing"), rows (0 if none can be read), sha256 ("ok",
    "damaged" or "").
    """
    table = []
    for name, source in SOURCES.items():
        row = {"name": name, "file": source.file, "found": "missing", "rows": 0, "sha256": ""}
        if found := find(name):
            row |= {"found": found[0], "sha256": "damaged"}
            with suppress(UserError):
                if not _damage(name, _contents(found[1])):
                    row |= {"rows": len(_read(name, found[1])), "sha256": "ok"}
        table.append(row)
    return pd.DataFrame(table)


def cache_dir() -> Path:
    """Where downloads are kept: pooch's cache folder for this project."""
    return Path(platformdirs.user_cache_dir("fdn"))


def _writable(folder: Path) -> Path:
    """The folder, or where it cannot be written a temporary one, which ends with the process."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        return folder
    except OSError as error:
        print(
            f"Downloads cannot be kept in {folder} ({error.strerror}); they are made again next time.", file=sys.stderr
        )
        return Path(_temporary().name)


@lru_cache
def _temporary() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="fdn-")


@lru_cache
def _read(name: str, path: Path) -> np.ndarray:
    columns = range(len(SOURCES[name].columns))
    try:
        if path.suffix == ".xlsx":
            frame = pd.read_excel(path, sheet_name=0, usecols=columns)
        else:
            frame = pd.read_csv(path, sep=r"\s+", header=None, usecols=columns)
        return frame.to_numpy(dtype=float)  # (N, d + 1)
    except Exception as error:  # of the parser, or for want of one
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split()) or repr(error)}") from error


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _damage(name: str, contents: bytes) -> str:
    found, expected = hashlib.sha256(contents).hexdigest(), SOURCES[name].sha256
    return "" if found == expected else f"expected sha256 {expected}, found {found}"


def _not_found(name: str, reason: str) -> UserError:
    source = SOURCES[name]
    return UserError(
        f"{name}: {source.file} is not in FDN_DATA_DIR, data/raw/ or the download cache, and {reason}; "
        f"{source.how_to_get}"
    )


def _answers(url: str) -> bool:
    # in a thread, since looking up a name without a network heeds no timeout
    import requests

    answers = []

    def ask() -> None:
        with suppress(requests.RequestException):
            answers.append(requests.head(urljoin(url, "/"), timeout=PATIENCE).status_code)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return bool(answers)


def _download(name: str, url: str, output_file: str) -> None:
    import pooch

    file, packed = SOURCES[name].file, io.BytesIO()
    pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=(PATIENCE, STALL))(url, packed, None)
    contents = _unpack(packed.getvalue(), file)
    if contents is None:
        raise ValueError(f"what was sent is not a zip that holds {file}")
    if damage := _damage(name, contents):
        raise ValueError(f"the {file} that was sent is damaged or another version, {damage}")
    Path(output_file).write_bytes(contents)  # pooch moves it into the cache in one step


def _unpack(packed: bytes, file: str) -> bytes | None:
    """Contents of a file in a zip, in any folder or in a zip inside it; None if it is not there."""
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            members = archive.namelist()
            for member in members:
                if PurePosixPath(member).name == file:
                    return archive.read(member)
            nested = (_unpack(archive.read(member), file) for member in members if member.endswith(".zip"))
            return next((contents for contents in nested if contents is not None), None)
    except Exception:  # damaged, encrypted, or packed in a way that cannot be read here
        return None
