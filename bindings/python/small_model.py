"""A model of one layer and four columns, all zeros: what it says is its first token, a mountain, again and again.

Usage: small_model.py FOLDER
"""
import json
import math
import os
import struct
import sys

MOUNTAIN = "\U0001f3d4"


def tokenizer():
    """Byte-level: four bytes of one character are one token."""
    vocabulary = {"ðŁıĶ": 0, **{letter: i for i, letter in enumerate("abcdefg", 1)}}
    return {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel"}}


def write_small_model(folder, chat_template=""):
    layer, shapes = "model.layers.0.", {"model.embeddings.weight": [8, 4], "model.norm.weight": [4]}
    shapes.update({layer + f"{name}.weight": [4] for name in ("attn_norm", "mlp_norm", "attn.o_norm")})
    shapes.update({layer + f"mlp.{name}_proj.weight": [4, 4] for name in ("gate", "up", "down")})
    shapes.update({layer + f"attn.{name}_proj.weight": [4, 4] for name in "qkvo"})
    shapes.update({layer + f"attn.{name}_proj.weight": [1, 4] for name in "ab"})
    shapes.update({layer + f"attn.{name}": [1] for name in ("A_log", "dt_bias")})
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    config = {"model_type": "gated_deltanet", "hidden_size": 4, "num_hidden_layers": 1, "vocab_size": 8, "num_heads": 1,
              "head_dim": 4, "expand_v": 1, "use_short_conv": False, "use_gate": False, "intermediate_size": 4,
              "tie_word_embeddings": True}
    files = {"config.json": json.dumps(config).encode(), "tokenizer.json": json.dumps(tokenizer()).encode(),
             "chat_template.jinja": chat_template.encode(),
             "model.safetensors": struct.pack("<Q", len(text)) + text + bytes(end)}
    os.makedirs(folder, exist_ok=True)
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)


if __name__ == "__main__":
    write_small_model(sys.argv[1])
