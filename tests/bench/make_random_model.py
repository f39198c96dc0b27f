#!/usr/bin/env python3
"""Writes a Qwen3.5 text model of random bf16 weights, for timing: make_random_model.py FOLDER [4b|0.8b]

The weights of all tensors are pieces of one block of normal numbers (deviation 0.02): speed does not look at them, and
norms and gates keep the activations finite. Needs numpy.
"""
import json
import os
import struct
import sys

import numpy

SHAPES = {  # model dim, hidden dim, layers, vocabulary, query heads, kv heads, GDN key heads, GDN value heads
    "4b": (2560, 9216, 32, 248320, 16, 4, 16, 32),
    "0.8b": (1024, 3584, 24, 248320, 8, 2, 16, 16),
}
HEAD_DIM, GDN_DIM, BLOCK = 256, 128, 1 << 24


def tensors(shape):
    """Yields (name, dtype, shape, kind) in file order; kind: random, zeros, ones, decay."""
    dim, hidden, layers, vocab, hq, hkv, hk, hv = shape
    yield "model.embed_tokens.weight", "BF16", (vocab, dim), "random"
    yield "model.norm.weight", "BF16", (dim,), "zeros"
    for i in range(layers):
        at = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield at + name + ".weight", "BF16", (dim,), "zeros"
        for name, rows, columns in (("gate_proj", hidden, dim), ("up_proj", hidden, dim), ("down_proj", dim, hidden)):
            yield f"{at}mlp.{name}.weight", "BF16", (rows, columns), "random"
        if i % 4 == 3:
            at += "self_attn."
            yield at + "q_proj.weight", "BF16", (2 * hq * HEAD_DIM, dim), "random"
            yield at + "k_proj.weight", "BF16", (hkv * HEAD_DIM, dim), "random"
            yield at + "v_proj.weight", "BF16", (hkv * HEAD_DIM, dim), "random"
            yield at + "o_proj.weight", "BF16", (dim, hq * HEAD_DIM), "random"
            yield at + "q_norm.weight", "BF16", (HEAD_DIM,), "zeros"
            yield at + "k_norm.weight", "BF16", (HEAD_DIM,), "zeros"
            continue
        at += "linear_attn."
        channels = (2 * hk + hv) * GDN_DIM
        yield at + "A_log", "F32", (hv,), "decay"
        yield at + "norm.weight", "F32", (GDN_DIM,), "ones"
        yield at + "conv1d.weight", "BF16", (channels, 1, 4), "random"
        yield at + "dt_bias", "BF16", (hv,), "zeros"
        yield at + "in_proj_a.weight", "BF16", (hv, dim), "random"
        yield at + "in_proj_b.weight", "BF16", (hv, dim), "random"
        yield at + "in_proj_qkv.weight", "BF16", (channels, dim), "random"
        yield at + "in_proj_z.weight", "BF16", (hv * GDN_DIM, dim), "random"
        yield at + "out_proj.weight", "BF16", (dim, hv * GDN_DIM), "random"


def config(shape):
    dim, hidden, layers, vocab, hq, hkv, hk, hv = shape
    return {
        "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "bfloat16", "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "hidden_act": "silu",
        "head_dim": HEAD_DIM, "hidden_size": dim, "intermediate_size": hidden, "initializer_range": 0.02,
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": GDN_DIM, "linear_value_head_dim": GDN_DIM,
        "linear_num_key_heads": hk, "linear_num_value_heads": hv, "max_position_embeddings": 262144,
        "num_attention_heads": hq, "num_key_value_heads": hkv, "num_hidden_layers": layers, "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "use_cache": True, "vocab_size": vocab,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                            "rope_theta": 1e7, "rope_type": "default"},
    }


def main():
    folder, shape = sys.argv[1], SHAPES[sys.argv[2] if len(sys.argv) > 2 else "4b"]
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config(shape), file, indent=1)
    header, offset = {}, 0
    for name, dtype, size, _ in tensors(shape):
        end = offset + int(numpy.prod(size)) * (4 if dtype == "F32" else 2)
        header[name] = {"dtype": dtype, "shape": list(size), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = numpy.random.default_rng(1)
    block = (random.standard_normal(BLOCK, dtype=numpy.float32) * 0.02).view(numpy.uint32)
    block = numpy.tile((block >> 16).astype(numpy.uint16), 2)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, dtype, size, kind in tensors(shape):
            count = int(numpy.prod(size))
            if kind == "decay":
                file.write(numpy.log(random.uniform(0.1, 16, count)).astype(numpy.float32).tobytes())
            elif kind != "random":
                file.write(numpy.full(count, float(kind == "ones"), numpy.float32 if dtype == "F32" else numpy.uint16).tobytes())
            while kind == "random" and count > 0:
                first = int(random.integers(BLOCK))
                piece = block[first:first + min(count, BLOCK)]
                file.write(piece.tobytes())
                count -= len(piece)
    print(f"{folder}: {(8 + len(text) + offset) / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
