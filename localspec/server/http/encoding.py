"""Bodies that come compressed (`Content-Encoding`), taken apart as they arrive and never beyond the limit of a body."""

from __future__ import annotations

import zlib

from localspec.server.http.errors import ApiError, invalid

ENCODINGS = ("gzip", "deflate")
"""Those that are read."""
_EITHER = 32 + zlib.MAX_WBITS
"""`wbits` of zlib for data with a header of gzip or of zlib."""


class Decompression:
    """One body."""

    def __init__(self, encoding: str, most: int) -> None:
        """
        Args:
            encoding: one of `ENCODINGS`.
            most: bytes that may come out at most; there is one more where there would be more.
        """
        self._encoding = encoding
        self._left = most + 1
        self._inflate = zlib.decompressobj(_EITHER)
        self._begun = b""
        """The first byte, until the second has come: both tell whether deflated data has a header."""
        self._read = False

    def feed(self, data: bytes, last: bool) -> bytes:
        """What some bytes of the body bring; `last`: no more come.

        Raises:
            ApiError: 400, it is no such data.
        """
        data, self._begun = self._begun + data, b""
        if not self._read and len(data) < 2 and not last:
            self._begun = data
            return b""
        if not self._read and data:
            self._read = True
            if self._encoding == "deflate" and not _has_header(data):
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            found = self._inflated(data)
        except zlib.error:
            raise invalid(f"The body is not what its Content-Encoding says: no {self._encoding} data.") from None
        if last and self._read and self._left and not self._inflate.eof:
            raise invalid(f"The body's {self._encoding} data is cut off.")
        return found

    def _inflated(self, data: bytes) -> bytes:
        found = []
        while data and self._left:
            if self._inflate.eof:  # gzip data may have several parts
                self._inflate = zlib.decompressobj(_EITHER)
            piece = self._inflate.decompress(data, self._left)
            self._left -= len(piece)
            found.append(piece)
            data = self._inflate.unconsumed_tail or self._inflate.unused_data
        return b"".join(found)


def encoding_of(header: str) -> str:
    """The encoding that a header names; "" = the body comes as it is.

    Raises:
        ApiError: 415, one that is not read here.
    """
    name = header.strip().lower().removeprefix("x-")
    if name in ("", "identity"):
        return ""
    if name in ENCODINGS:
        return name
    what = f"Content-Encoding is {header.strip()[:80]!r}; this server reads {' and '.join(ENCODINGS)}, or none."
    headers = {"Accept-Encoding": ", ".join(ENCODINGS), "Connection": "close"}
    raise ApiError(415, "invalid_request_error", what, headers=headers)


def _has_header(data: bytes) -> bool:
    """Whether deflated data begins with a header of zlib: many programs leave it out."""
    return len(data) > 1 and data[0] & 0x0F == 8 and (data[0] << 8 | data[1]) % 31 == 0
