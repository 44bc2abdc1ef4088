"""Structs of ggml and llama.cpp that their bindings do not declare, as the pinned release lays them out.

`packaging/port` compares them with the headers of a release; native/wide/abi.h has what C needs of ggml.
"""

from __future__ import annotations

import ctypes

_POINTER = ctypes.c_void_p


class Tensor(ctypes.Structure):
    """The start of a ggml_tensor."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", _POINTER),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", _POINTER * 10),
        ("view_src", _POINTER),
        ("view_offs", ctypes.c_size_t),
        ("data", _POINTER),
    )


class TypeTraits(ctypes.Structure):
    """The start of a ggml_type_traits: how ggml stores a type."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, _POINTER, _POINTER, ctypes.c_int64)),
    )


class InitParams(ctypes.Structure):
    """A ggml_init_params: the memory for descriptions of tensors."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", _POINTER), ("no_alloc", ctypes.c_bool))


class BufferOverride(ctypes.Structure):
    """A llama_model_tensor_buft_override: where tensors of a name go."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", _POINTER))
