"""What tells one architecture from the others: the metadata of its files, and which optional tensors they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SIZES: dict[str, Any] = {
    "context_length": 2048,
    "embedding_length": 256,
    "feed_forward_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
}
"""Metadata that all of them share. A loader ignores keys that it does not know."""

NOTHING = r"(?!)"
"""A pattern that no name has."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What tells an architecture from the others."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Keys of its own, without the prefix; they win over `SIZES`."""
    keeps: str = NOTHING
    """A pattern of optional tensors (`architectures.OPTIONAL`) that its files have."""
    layers: int = 2
    tied: bool = False
    """The output matrix is the embedding."""
    fused: bool = False
    """Queries, keys and values come from one matrix, though the loader would take three."""
    lacks: str = NOTHING
    """A pattern of other tensors that the loader asks for, and that its files do not have."""
    architecture: str = ""
    """llama.cpp's name of it; "" = the name of the recipe."""


_QKV_BIAS, _QK_NORM, _NORM_BIAS, _ALL_BIAS = r"attn_[qkv]\.bias", r"attn_[qk]_norm\.weight", r"norm\.bias", r"\.bias$"
_MANY_HEADS = {"attention.head_count": 4, "attention.head_count_kv": 4}
"""Every head has keys and values of its own."""
_WINDOW = {"attention.sliding_window": 64, "attention.sliding_window_pattern": 2}
"""Every second layer sees the last 64 tokens."""
_SCALES = {"embedding_scale": 12.0, "attention.scale": 0.0156, "logit_scale": 1.0, "residual_scale": 0.22}
_SOFT_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA4 = {
    "attention.sliding_window": 64,
    "attention.key_length": 128,
    "attention.value_length": 128,
    "attention.key_length_swa": 64,
    "attention.value_length_swa": 64,
    "rope.dimension_count": 128,
    "rope.dimension_count_swa": 64,
    "rope.freq_base": 1e6,
    "rope.freq_base_swa": 1e4,
    "final_logit_softcapping": 30.0,
    "embedding_length_per_layer_input": 0,
}
_GEMMA4_KEEPS = rf"{_QK_NORM}|rope_freqs|layer_output_scale"
_DENSE = {
    "llama": Recipe({"rope.freq_base": 5e5}, keeps="rope_freqs"),
    "qwen2": Recipe(keeps=_QKV_BIAS, tied=True),
    "qwen3": Recipe({"attention.key_length": 128, "attention.value_length": 128}, keeps=_QK_NORM, tied=True),
    "gemma2": Recipe({**_WINDOW, **_SOFT_CAPS}, tied=True),
    "gemma3": Recipe({**_WINDOW, "attention.head_count_kv": 1}, keeps=_QK_NORM, tied=True),
    "phi3": Recipe({"rope.scaling.original_context_length": 512}, keeps="rope_factors", fused=True),
    "granite": Recipe(_SCALES, tied=True),
    "olmo2": Recipe(_WINDOW, keeps=_QK_NORM),
    "starcoder2": Recipe(keeps=_ALL_BIAS),
    "falcon": Recipe({"attention.head_count_kv": 1}, keeps=_NORM_BIAS),
    "smollm3": Recipe(tied=True, layers=4),
    "cohere2": Recipe({**_WINDOW, "logit_scale": 1.0}, tied=True),
    "exaone4": Recipe(keeps=_QK_NORM),
    "stablelm": Recipe({"use_parallel_residual": False, "attention.head_count_kv": 4}, keeps=_NORM_BIAS),
    "internlm2": Recipe(),
    "minicpm": Recipe(layers=3),
    "seed_oss": Recipe(keeps=_QKV_BIAS),
    "hunyuan-dense": Recipe(keeps=_QK_NORM, tied=True),
    "gptneox": Recipe({"use_parallel_residual": True, "attention.head_count_kv": 4}, keeps=_ALL_BIAS),
    "bloom": Recipe({"attention.head_count_kv": 4}, keeps=_ALL_BIAS),
    "mpt": Recipe({**_MANY_HEADS, "attention.max_alibi_bias": 16.0, "attention.clamp_kqv": 6.0}, tied=True),
    "bitnet": Recipe(_MANY_HEADS, keeps="_sub_norm", tied=True),
    # The last two of 22 layers take their keys and values from others.
    "gemma3n": Recipe(
        {**_WINDOW, "attention.sliding_window_pattern": 5, "feed_forward_length": 256},
        keeps=_QK_NORM,
        tied=True,
        layers=22,
    ),
    # The layer that sees all tokens takes its keys as values, too.
    "gemma4": Recipe(
        {**_GEMMA4, "attention.sliding_window_pattern": [True, True, False]},
        keeps=_GEMMA4_KEEPS,
        lacks=r"blk\.2\.attn_v\.",
        tied=True,
        layers=3,
    ),
    "gemma4-edge": Recipe(
        {
            **_GEMMA4,
            "attention.sliding_window_pattern": [True, False, True, False],
            "attention.shared_kv_layers": 2,
            "attention.head_count_kv": 1,
            "embedding_length_per_layer_input": 64,
            "feed_forward_length": [256, 256, 512, 512],
        },
        keeps=_GEMMA4_KEEPS,
        tied=True,
        layers=4,
        architecture="gemma4",
    ),
}

_EXPERTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 256}
_PLAIN_EXPERTS = {"expert_count": 8, "expert_used_count": 2, "feed_forward_length": 256}
"""Of architectures that have no other feed forward networks."""
_SOFTMAX, _SIGMOID = 1, 2
"""Values of `expert_gating_func`."""
_SHARED = {"expert_shared_count": 1, "leading_dense_block_count": 1, "expert_weights_scale": 2.5}
"""The first layer has no experts; in the others one is always used."""
_LATENT = {
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": 256,
    "attention.kv_lora_rank": 512,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "rope.dimension_count": 64,
}
"""Keys and values of all heads from one vector of 512 numbers."""
_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 40.0, "rope.scaling.original_context_length": 512}
_MIXED = {
    "qwen3moe": Recipe(_EXPERTS, keeps=_QK_NORM),
    "granitemoe": Recipe({**_SCALES, **_EXPERTS}, tied=True),
    "mixtral": Recipe({**_PLAIN_EXPERTS, "rope.freq_base": 1e6}, architecture="llama"),
    "gpt-oss": Recipe(
        {
            **_EXPERTS,
            **_YARN,
            "expert_count": 32,
            "expert_used_count": 4,
            "expert_feed_forward_length": 64,
            "attention.head_count": 8,
            "attention.key_length": 64,
            "attention.value_length": 64,
            "attention.sliding_window": 128,
            "rope.freq_base": 1.5e5,
        },
        keeps=rf"attn_sinks|{_ALL_BIAS}",
    ),
    "glm4moe": Recipe(
        {
            **_EXPERTS,
            **_SHARED,
            "expert_count": 16,
            "expert_weights_norm": True,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "rope.dimension_count": 64,
        },
        keeps=rf"{_QKV_BIAS}|{_QK_NORM}",
        layers=3,
    ),
    "deepseek2": Recipe(
        {
            **_EXPERTS,
            **_SHARED,
            **_LATENT,
            **_YARN,
            "rope.scaling.yarn_log_multiplier": 0.1,
            "expert_gating_func": _SIGMOID,
            "expert_weights_norm": True,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
        },
    ),
    "mistral4": Recipe(
        {
            **_EXPERTS,
            **_SHARED,
            **_LATENT,
            "attention.kv_lora_rank": 256,
            "attention.key_length": 320,
            "attention.value_length": 256,
            "attention.key_length_mla": 128,
            "expert_gating_func": _SOFTMAX,
            "leading_dense_block_count": 0,
            "attention.temperature_scale": 0.1,
            "attention.temperature_length": 256,
        },
    ),
    "hunyuan-moe": Recipe({**_EXPERTS, "expert_shared_feed_forward_length": 256}, keeps=_QK_NORM, tied=True),
    "ernie4_5-moe": Recipe(
        {
            **_EXPERTS,
            "expert_shared_feed_forward_length": 256,
            "interleave_moe_layer_step": 1,
            "leading_dense_block_count": 1,
        },
        tied=True,
    ),
    "phimoe": Recipe(
        {**_PLAIN_EXPERTS, "expert_count": 16, "rope.scaling.original_context_length": 512},
        keeps=rf"rope_factors|{_ALL_BIAS}",
    ),
    "llama4": Recipe(
        {**_EXPERTS, "expert_used_count": 1, "interleave_moe_layer_step": 2, "rope.freq_base": 5e5},
        keeps="rope_freqs",
        layers=4,
    ),
    "olmoe": Recipe({**_MANY_HEADS, **_PLAIN_EXPERTS, "expert_count": 16, "expert_used_count": 4}, keeps=_QK_NORM),
    "minimax-m2": Recipe(
        {
            **_PLAIN_EXPERTS,
            "expert_feed_forward_length": 256,
            "expert_gating_func": _SIGMOID,
            "attention.key_length": 128,
            "attention.value_length": 128,
            "rope.dimension_count": 64,
        },
        keeps=_QK_NORM,
    ),
    "smallthinker": Recipe(
        {**_EXPERTS, "expert_gating_func": _SIGMOID, "attention.sliding_window": 4096, "expert_count": 16}, layers=4
    ),
    "grok": Recipe({**_EXPERTS, "final_logit_softcapping": 50.0, "embedding_scale": 8.0}),
    # Behind the first layer attention sees the four blocks of 64 tokens that matter most, and its own.
    "minimax-m3": Recipe(
        {
            **_EXPERTS,
            **_SHARED,
            "expert_gating_func": _SIGMOID,
            "expert_weights_norm": True,
            "rope.dimension_count": 32,
            "attention.indexer.head_count": 2,
            "attention.indexer.key_length": 64,
            "attention.indexer.top_k": 4,
            "attention.indexer.block_size": 64,
            "attention.indexer.local_blocks": 1,
        },
        keeps=_QK_NORM,
    ),
    "gemma4-moe": Recipe(
        {**_GEMMA4, **_EXPERTS, "expert_count": 16, "attention.sliding_window_pattern": [True, False]},
        keeps=rf"{_GEMMA4_KEEPS}|norm_2\.|ffn_gate_inp\.scale|ffn_down_exps\.scale|ffn_gate_up_exps",
        lacks=r"blk\.1\.attn_v\.",
        tied=True,
        architecture="gemma4",
    ),
    "qwen2moe": Recipe({**_EXPERTS, "expert_shared_feed_forward_length": 512}, keeps=_QKV_BIAS),
}

_SCAN = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 64,
    "ssm.inner_size": 512,
    "ssm.time_step_rank": 16,
    "ssm.group_count": 1,
}
"""A state of 64 numbers for each of 512 channels, in 16 heads."""
_DELTA = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 32,
    "ssm.inner_size": 512,
    "ssm.time_step_rank": 16,
    "ssm.group_count": 8,
    "full_attention_interval": 2,
    "attention.key_length": 128,
    "attention.value_length": 128,
    "rope.dimension_count": 32,
}
"""Every second layer has 16 states of 32 by 32 numbers; two of them share a key."""
_SECTIONS = {"rope.dimension_sections": [6, 5, 5, 0]}
_RECURRENT = {
    "lfm2": Recipe({"shortconv.l_cache": 3, "attention.head_count_kv": [2, 0]}, keeps=_QK_NORM, tied=True),
    "lfm2moe": Recipe(
        {
            **_EXPERTS,
            "shortconv.l_cache": 3,
            "attention.head_count_kv": [0, 2, 0],
            "leading_dense_block_count": 1,
            "expert_gating_func": _SIGMOID,
            "expert_count": 16,
            "expert_used_count": 4,
        },
        keeps=_QK_NORM,
        tied=True,
        layers=3,
    ),
    "qwen35": Recipe({**_DELTA, **_SECTIONS}, keeps=_QK_NORM, tied=True),
    "qwen35moe": Recipe(
        {**_DELTA, **_SECTIONS, **_EXPERTS, "ssm.time_step_rank": 32, "ssm.inner_size": 1024, "expert_count": 16},
        keeps=_QK_NORM,
    ),
    "qwen3next": Recipe(
        {**_DELTA, **_EXPERTS, "expert_count": 16, "expert_shared_feed_forward_length": 256},
        keeps=_QK_NORM,
    ),
    "nemotron_h": Recipe(
        {
            **_SCAN,
            "ssm.group_count": 2,
            "attention.head_count_kv": [0, 0, 2, 0],
            "feed_forward_length": [0, 512, 0, 0],
        },
        layers=4,
    ),
    "nemotron_h_moe": Recipe(
        {
            **_SCAN,
            **_EXPERTS,
            "ssm.group_count": 2,
            "attention.head_count_kv": [0, 0, 2, 0],
            "feed_forward_length": [0, 256, 0, 0],
            "expert_count": 16,
            "expert_shared_count": 1,
            "expert_shared_feed_forward_length": 512,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
        },
        layers=4,
    ),
    "falcon-h1": Recipe({**_SCAN, "attention.key_length": 64, "attention.value_length": 64, "rope.freq_base": 1e11}),
    "granitehybrid": Recipe(
        {
            **_SCAN,
            **_SCALES,
            **_PLAIN_EXPERTS,
            "expert_count": 16,
            "expert_shared_feed_forward_length": 256,
            "attention.head_count_kv": [0, 2, 0],
            "rope.scaling.finetuned": False,
        },
        tied=True,
        layers=3,
    ),
    "mamba2": Recipe({**_SCAN, "attention.head_count": 0, "feed_forward_length": 0}, tied=True),
    "kimi-linear": Recipe(
        {
            **_EXPERTS,
            **_SHARED,
            **_LATENT,
            "attention.head_count": 16,
            "attention.head_count_kv": [0, 0, 1],
            "attention.kv_lora_rank": 256,
            "attention.key_length": 288,
            "attention.value_length": 256,
            "attention.key_length_mla": 64,
            "attention.value_length_mla": 32,
            "rope.dimension_count": 32,
            "expert_gating_func": _SIGMOID,
            "ssm.conv_kernel": 4,
            "kda.head_dim": 32,
        },
        layers=3,
    ),
    "rwkv7": Recipe(
        {
            "attention.head_count": 0,
            "wkv.head_size": 64,
            "attention.decay_lora_rank": 32,
            "attention.iclr_lora_rank": 32,
            "attention.value_residual_mix_lora_rank": 32,
            "attention.gate_lora_rank": 64,
        },
        keeps=rf"{_ALL_BIAS}|norm_2\.",
    ),
}

RECIPES: Mapping[str, Recipe] = {**_DENSE, **_MIXED, **_RECURRENT}
"""By name, which is the architecture's except where a recipe says so."""
DENSE, MIXED, RECURRENT = tuple(_DENSE), tuple(_MIXED), tuple(_RECURRENT)
"""Names of those without experts and states, of those with experts (their routers are F32), and of those with layers
that carry a state from token to token."""
NOT_MADE: tuple[tuple[str, str], ...] = ()
"""(architecture, why) of those that llama.cpp makes no model of here."""
