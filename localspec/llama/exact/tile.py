"""Makes a long cache out of a short one by repeating its cells, so that a probe need not prefill thousands of tokens.

Works on the bytes of `Context.save`. What a cell holds does not matter for the cost of a pass or the order in which
it adds numbers; how many there are does. A recurrent state is the same size after any number of tokens.
"""

from __future__ import annotations

import struct

import numpy as np

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_F32 = 0


class _Other(Exception):
    """Not a plain attention cache, with or without recurrent states after it."""


def tile(state: bytes, cells: int) -> bytes | None:
    """The state of a sequence of `cells` cells at positions 0, 1, ..., or None if the layout is not the known one.

    Args:
        state: `Context.save` of a sequence with cells at positions 0, 1, ...
        cells: how many the result has; fewer than in `state` is fine.
    """
    try:
        return _tile(state, cells)
    except (_Other, struct.error):
        return None


def _tile(state: bytes, cells: int) -> bytes:
    reader = _Copier(state)
    reader.copy(8)  # magic, sequence id
    for _ in range(reader.copy_u32()):  # streams
        count = reader.read_u32()
        reader.write_u32(cells if count else 0)
        if count:
            reader.cells(count, cells)
            transposed, layers = reader.copy_u32(), reader.copy_u32()
            for _ in range(layers):
                reader.copy(4)
                reader.rows(count, cells, reader.copy_u64())
            for _ in range(layers):
                reader.copy(4)
                if transposed:
                    size, width = reader.copy_u32(), reader.copy_u32()
                    for _ in range(width):
                        reader.rows(count, cells, size)
                else:
                    reader.rows(count, cells, reader.copy_u64())
    if reader.at < len(state):
        _tile_recurrent(reader, cells)
    return b"".join(reader.out)


def _tile_recurrent(reader: _Copier, cells: int) -> None:
    """One cell at the last position, without ids; then transposed, layers, and a row of F32 of each tensor."""
    if reader.copy_u32() != 1 or reader.read_u32() != reader.length - 1:
        raise _Other
    reader.write_u32(cells - 1)
    if reader.copy_u32() or reader.copy_u32():
        raise _Other
    reader.copy(4)
    while reader.at < len(reader.state):
        if reader.copy_u32() != _F32:
            raise _Other
        reader.copy(reader.copy_u64())


class _Copier:
    """Reads one state while writing another."""

    def __init__(self, state: bytes) -> None:
        self.state, self.at, self.out = state, 0, list[bytes]()
        self.length = 0
        """Number of cells of the stream that was read last."""

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.state):
            raise _Other
        self.at += count
        return self.state[self.at - count : self.at]

    def copy(self, count: int) -> bytes:
        data = self.take(count)
        self.out.append(data)
        return data

    def read_u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def write_u32(self, value: int) -> None:
        self.out.append(_U32.pack(value))

    def copy_u32(self) -> int:
        return int(_U32.unpack(self.copy(4))[0])

    def copy_u64(self) -> int:
        return int(_U64.unpack(self.copy(8))[0])

    def cells(self, count: int, wanted: int) -> None:
        """Per cell: position, number of ids (1), maybe 12 bytes more, the id. Positions are numbered anew."""
        for words in (3, 6):
            end = self.at + 4 * words * count
            if end > len(self.state):
                raise _Other
            table = np.frombuffer(self.state[self.at : end], dtype="<i4").reshape(count, words)
            if (table[:, 0] == np.arange(count)).all() and (table[:, 1] == 1).all():
                break
        else:
            raise _Other
        self.at, self.length = end, count
        longer = table[np.arange(wanted) % count]
        longer[:, 0] = np.arange(wanted)
        self.out.append(longer.astype("<i4").tobytes())

    def rows(self, count: int, wanted: int, size: int) -> None:
        data = self.take(count * size)
        whole, rest = divmod(wanted, count)
        self.out.append(data * whole + data[: rest * size])
