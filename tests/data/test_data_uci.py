"""The UCI sets: exact splits, and finding, downloading and verifying their files without the archive."""

from __future__ import annotations

import http.server
import io
import socket
import threading
import time
import zipfile
from dataclasses import replace
from hashlib import sha256

import pytest

from fdn import data, paths
from fdn.data import uci
from fdn.errors import UserError


def needs_file(name):
    return pytest.mark.skipif(uci.find(name) is None, reason=f"{name} is not on disk: {uci.SOURCES[name].how_to_get}")


@pytest.mark.parametrize(
    ("name", "rows", "id_test", "x_sum", "y_sum"),
    [
        pytest.param("airfoil", (597, 199, 707), 200, 800.0170975, -219.8072953, marks=needs_file("airfoil")),
        pytest.param("ccpp", (3444, 1148, 4976), 1149, -1455.8744951, 1399.7138629, marks=needs_file("ccpp")),
        pytest.param("energy", (307, 102, 359), 103, 179.5522907, 9.4436850, marks=needs_file("energy")),
    ],
)
def test_splits_are_the_published_ones(name, rows, id_test, x_sum, y_sum):
    d = data.load(name)
    assert (len(d.y_train), len(d.y_val), len(d.y_test)) == rows and d.id_test.sum() == id_test
    assert d.x_test.sum() == pytest.approx(x_sum, rel=0, abs=1e-7)  # one unit of the last digit
    assert d.y_test.sum() == pytest.approx(y_sum, rel=0, abs=1e-7)
    assert d.id_val.all() and d.split_feature == 0 and "CC BY 4.0" in d.source


# Files of our own in place of the archive's

GOOD = b"".join(b"%d %d %d.5 %d %d %d\n" % (i, i * i % 7, i % 3, i % 4, i % 5, 3 * i) for i in range(50))


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, contents in members.items():
            archive.writestr(member, contents)
    return buffer.getvalue()


FILE = "numbers.dat"
FLAT = zipped({"readme": "x", FILE: GOOD})
FOLDER = zipped({f"set/{FILE}": GOOD})
DEFLATED = FLAT[(start := FLAT.index(FILE.encode()) + len(FILE)) : start + 40]  # of the file in the zip
NESTED = zipped({"readme": "x", "inner.zip": FOLDER})


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """No file anywhere, and a source "airfoil" with contents of our own."""
    source = replace(uci.SOURCES["airfoil"], file=FILE, sha256=sha256(GOOD).hexdigest())
    monkeypatch.setitem(uci.SOURCES, "airfoil", source)
    monkeypatch.setattr(paths, "DATA_RAW", tmp_path / "raw")
    monkeypatch.setattr(uci, "cache_dir", lambda: tmp_path / "cache")
    for variable in ("FDN_DATA_DIR", "FDN_OFFLINE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    uci._read.cache_clear()
    return tmp_path


@pytest.fixture
def archive(empty, monkeypatch):
    """A local archive that gives the queued (status, body) answers in turn, the last one for ever."""
    answers, asked = [], []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(200)
            self.end_headers()

        def do_GET(self):
            asked.append(self.path)
            status, body = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    at(f"http://127.0.0.1:{server.server_port}/numbers.zip", monkeypatch)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # pooch waits a second or two between tries
    yield answers, asked
    server.shutdown()
    server.server_close()


def at(url, monkeypatch):
    monkeypatch.setitem(uci.SOURCES, "airfoil", replace(uci.SOURCES["airfoil"], url=url))


def put(folder, contents=GOOD):
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_bytes(contents)
    return folder


def test_places_are_searched_in_order(empty, monkeypatch):
    assert uci.find("airfoil") is None and not data.available("airfoil") and "airfoil" in data.missing()
    put(empty / "cache")
    assert uci.find("airfoil") == ("download cache", empty / "cache" / FILE)
    put(empty / "raw")
    assert uci.find("airfoil") == ("data/raw", empty / "raw" / FILE)
    monkeypatch.setenv("FDN_DATA_DIR", str(empty / "mine"))
    assert uci.find("airfoil")[0] == "data/raw"  # the file is not there yet
    put(empty / "mine")
    assert uci.find("airfoil") == ("FDN_DATA_DIR", empty / "mine" / FILE)
    assert data.available("airfoil") and "airfoil" not in data.missing()
    assert data.load("airfoil").x_train.shape == (18, 5)


def test_a_damaged_file_is_named_with_both_checksums(empty, monkeypatch):
    put(empty / "raw")
    monkeypatch.setenv("FDN_DATA_DIR", str(put(empty / "mine", GOOD[:-1])))
    with pytest.raises(UserError) as caught:
        data.load("airfoil")
    for part in (str(empty / "mine" / FILE), sha256(GOOD).hexdigest(), sha256(GOOD[:-1]).hexdigest()):
        assert part in str(caught.value)
    assert data.available("airfoil")  # so that asking for it reports the damage
    row = uci.status().set_index("name").loc["airfoil"]
    assert (row.found, row.rows, row.sha256) == ("FDN_DATA_DIR", 0, "damaged")


def test_status_tells_place_rows_and_checksum(empty):
    put(empty / "raw")
    table = uci.status().set_index("name")
    assert list(table.loc["airfoil"]) == [FILE, "data/raw", 50, "ok"]
    assert list(table.loc["energy"]) == ["ENB2012_data.xlsx", "missing", 0, ""]


@pytest.mark.parametrize("body", [FLAT, FOLDER, NESTED], ids=["flat", "folder", "nested"])
def test_download_is_unpacked_verified_kept_and_not_repeated(archive, empty, body):
    answers, asked = archive
    answers.append((200, body))
    assert uci.fetch("airfoil") == empty / "cache" / FILE
    assert (empty / "cache" / FILE).read_bytes() == GOOD
    assert [path.name for path in (empty / "cache").iterdir()] == [FILE]
    assert data.load("airfoil").n_features == 5 and len(asked) == 1


def test_download_is_tried_again_after_a_502_and_after_a_broken_zip(archive):
    answers, asked = archive
    answers.extend([(502, b"Bad Gateway"), (200, FLAT[: len(FLAT) // 2]), (200, FLAT)])
    assert uci.fetch("airfoil").read_bytes() == GOOD and len(asked) == 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((502, b"Bad Gateway"), "502"),
        ((200, b"<html>sign in</html>"), "not a zip that holds numbers.dat"),
        ((200, zipped({"other.dat": GOOD})), "not a zip that holds numbers.dat"),
        ((200, FLAT.replace(DEFLATED, b"\xff" * 40)), "not a zip that holds numbers.dat"),
        ((200, zipped({FILE: GOOD[:-1]})), f"sent is damaged .*, found {sha256(GOOD[:-1]).hexdigest()};"),
    ],
    ids=["502", "page", "other", "garbled", "another"],
)
def test_a_download_that_stays_bad_leaves_nothing_and_says_what_to_do(archive, empty, answer, message):
    answers, asked = archive
    answers.append(answer)
    with pytest.raises(UserError, match=message) as caught:
        data.load("airfoil")
    for part in (uci.SOURCES["airfoil"].url, FILE, "data/raw/", "FDN_DATA_DIR"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(asked) == 1 + uci.RETRIES and uci.find("airfoil") is None
    assert list((empty / "cache").iterdir()) == []


def test_downloads_go_on_without_a_cache(archive, empty, capsys):
    answers, asked = archive
    answers.append((200, FLAT))
    (empty / "cache").write_text("a file where the folder should be", encoding="utf-8")
    assert data.load("airfoil").x_train.shape == (18, 5)
    assert "cannot be kept" in capsys.readouterr().err and len(asked) == 1
    assert uci.find("airfoil") is None


def test_a_damaged_download_is_made_again(archive, empty):
    answers, asked = archive
    answers.append((200, FLAT))
    put(empty / "cache", GOOD[:-1])
    row = uci.status().set_index("name").loc["airfoil"]
    assert (row.found, row.rows, row.sha256) == (
        "download cache",
        0,
        "damaged",
    ) and not asked  # a look downloads nothing
    assert uci.fetch("airfoil").read_bytes() == GOOD and len(asked) == 1
    assert uci.fetch("airfoil") == empty / "cache" / FILE and len(asked) == 1


@pytest.mark.parametrize("name", ["numbers.dat", "numbers.xlsx"])
def test_a_file_that_the_parsers_refuse_is_one_sentence(empty, monkeypatch, name):
    contents = b"\xff\x00 no table"
    monkeypatch.setitem(
        uci.SOURCES, "airfoil", replace(uci.SOURCES["airfoil"], file=name, sha256=sha256(contents).hexdigest())
    )
    (empty / "raw").mkdir()
    (empty / "raw" / name).write_bytes(contents)
    with pytest.raises(UserError, match=f"{name} cannot be read") as caught:
        data.load("airfoil")
    assert "\n" not in str(caught.value)


def test_offline_asks_no_server(archive, monkeypatch):
    monkeypatch.setenv("FDN_OFFLINE", "1")
    monkeypatch.setattr(uci, "_answers", lambda url: pytest.fail("asked the network"))
    with pytest.raises(UserError, match="FDN_OFFLINE.*download http.*data/raw/"):
        data.load("airfoil")


def seconds_until_error():
    start = time.perf_counter()
    with pytest.raises(UserError, match="did not answer .*data/raw/"):
        data.load("airfoil")
    return time.perf_counter() - start


def test_three_sets_without_a_network_end_within_30_seconds():
    assert len(uci.SOURCES) * uci.PATIENCE < 30


def test_a_refused_connection_ends_at_once(empty, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        at(f"http://127.0.0.1:{closed.getsockname()[1]}/numbers.zip", monkeypatch)
    assert seconds_until_error() < 3


def test_a_silent_server_ends_after_the_patience(empty, monkeypatch):
    monkeypatch.setattr(uci, "PATIENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at(f"http://127.0.0.1:{silent.getsockname()[1]}/numbers.zip", monkeypatch)
        assert 0.3 < seconds_until_error() < 3


def test_a_hanging_name_lookup_ends_after_the_patience(empty, monkeypatch):
    monkeypatch.setattr(uci, "PATIENCE", 0.5)
    release = threading.Event()

    def hang(*_, **__):
        release.wait(20)
        raise socket.gaierror("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    at("http://archive.invalid/numbers.zip", monkeypatch)
    try:
        assert 0.3 < seconds_until_error() < 3
    finally:
        release.set()
