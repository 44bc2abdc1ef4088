"""Bodies that come compressed: as OpenAI's clients and proxies send them, in pieces, damaged, and as bombs."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.server.http.app import Decompression
from localspec.server.http.output import ApiError
from localspec.server.http.settings import MIB, ServerSettings
from tests.server.live import Live, error_of

JSON = {"Content-Type": "application/json"}
BODY = json.dumps({"prompt": "One day", "max_tokens": 2, "temperature": 0}).encode()


def raw(data: bytes) -> bytes:
    """Deflated data without a header, which many programs send."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "its old name": ("x-gzip", gzip.compress),
    "two parts": ("gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "deflate": ("deflate", zlib.compress),
    "deflate without a header": ("DEFLATE", raw),
    "none": ("identity", bytes),
}


@pytest.mark.parametrize("way", PACKED)
def test_a_compressed_body_is_read(live: Live, way: str) -> None:
    name, pack = PACKED[way]
    wanted = live.http.post("/v1/completions", content=BODY, headers=JSON).json()["choices"][0]["text"]
    response = live.http.post("/v1/completions", content=pack(BODY), headers=JSON | {"Content-Encoding": name})
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["text"] == wanted


@pytest.mark.parametrize("name", ["br", "zstd", "gzip, deflate"])
def test_others_are_refused_with_the_names_of_those_that_are_read(live: Live, name: str) -> None:
    response = live.http.post("/v1/completions", content=BODY, headers=JSON | {"Content-Encoding": name})
    assert response.status_code == 415
    assert response.headers["Accept-Encoding"] == "gzip, deflate"
    assert "gzip and deflate" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (BODY, "no gzip data"),
        (gzip.compress(BODY, mtime=0)[:-9], "cut off"),
        (gzip.compress(BODY, mtime=0) + b"more", "no gzip data"),
        (gzip.compress(BODY, mtime=0)[:-8] + bytes(8), "no gzip data"),
    ],
)
def test_what_is_damaged_is_a_sentence(live: Live, data: bytes, said: str) -> None:
    response = live.http.post("/v1/completions", content=data, headers=JSON | {"Content-Encoding": "gzip"})
    assert response.status_code == 400
    assert said in error_of(response)["message"]


def test_a_bomb_is_a_large_body(live: Live) -> None:
    """A gigabyte in a megabyte: refused at the limit."""
    data = gzip.compress(b" " * (1 << 30), compresslevel=9)
    assert len(data) < 2 * MIB
    response = live.http.post("/v1/completions", content=data, headers=JSON | {"Content-Encoding": "gzip"})
    assert response.status_code == 413
    assert str(ServerSettings().max_body_bytes) in error_of(response)["message"]


def unpacked(name: str, packed: bytes, cuts: list[int], most: int) -> bytes:
    """What comes out of data that arrives in pieces."""
    taken, starts = Decompression(name, most), [0, *sorted(cuts)]
    ends = [*starts[1:], len(packed)]
    return b"".join(
        taken.feed(packed[start:end], last=index == len(ends) - 1)
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    )


@given(st.binary(max_size=300), st.sampled_from(["gzip", "deflate", "raw"]), st.data())
def test_it_does_not_matter_how_data_arrives(data: bytes, way: str, choice: st.DataObject) -> None:
    packed = PACKED["deflate without a header" if way == "raw" else way][1](data)
    cuts = choice.draw(st.lists(st.integers(0, len(packed)), max_size=6))
    name = "deflate" if way == "raw" else way
    assert unpacked(name, packed, cuts, len(data)) == data
    if data:
        assert len(unpacked(name, packed, cuts, len(data) - 1)) == len(data), (
            "one byte more than allowed, to be refused"
        )


def test_nothing_is_nothing() -> None:
    assert unpacked("gzip", b"", [], 10) == b""
    with pytest.raises(ApiError, match="cut off"):
        unpacked("deflate", b"\x78", [], 10)
