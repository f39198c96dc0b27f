#!/usr/bin/env python3
"""Cases whose parameters say what vectors_check does not understand must fail: spoiled_vectors.py VECTORS_CHECK VECTORS"""
import copy
import json
import os
import subprocess
import sys
import tempfile

SPOILED = [  # case, where in its parameters, key, value, what the report must say
    ("conv_k4", [], "bias", True, "parameter 'bias' is not known"),
    ("sse_tiny", [], "gate_write", False, "parameter 'gate_write' is not known"),
    ("select_c2", [], "policy", "other", "policy 'other' is not known"),
    ("sparse_tiny", [], "policy", "other", "policy 'other' is not known"),
    ("layer_kda", [], "other", 1, "parameter 'other' is not known"),
    ("layer_gdn_sparse", ["sparse"], "other", 1, "parameter sparse 'other' is not known"),
    ("layer_gdn_sparse", ["sparse"], "policy", "other", "policy 'other' is not known"),
    ("layer_kda", ["cfg"], "topk", 1, "kda: 'topk' is not known"),
    ("layer_kda", ["cfg"], "gate", "tanh", "gate 'tanh' is not known"),
    ("layer_kda", ["cfg"], "rank", 5, "'rank' is 5, but the tensors say 8"),
    ("layer_kda", ["cfg"], "conv", 3, "'conv' is 3, but the tensors say 4"),
    ("layer_sdm", ["cfg"], "learned_M0", False, "'learned_M0' is 0, but the tensors say 1"),
    ("layer_clerh_lowrank", ["cfg"], "route_rank", 5, "'route_rank' is 5, but the tensors say 6"),
    ("model_gdn_hybrid", ["cfg"], "logit_scale", 2, "model configuration 'logit_scale' is not known"),
]


def main():
    program, vectors = sys.argv[1], os.path.abspath(sys.argv[2])
    with open(os.path.join(vectors, "index.json")) as file:
        cases = {case["name"]: case for case in json.load(file)["cases"]}
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name, place, key, value, message in SPOILED:
            case = copy.deepcopy(cases[name])
            target = case["params"]
            for step in place:
                target = target[step]
            target[key] = value
            case["file"] = os.path.relpath(os.path.join(vectors, case["file"]), folder)
            with open(os.path.join(folder, "index.json"), "w") as file:
                json.dump({"cases": [case]}, file)
            run = subprocess.run([program, "--vectors", folder], capture_output=True, text=True)
            if run.returncode != 1 or message not in run.stdout:
                wrong.append(f"{name} with {key} = {value}: exit {run.returncode}\n{run.stdout}")
    print("\n".join(wrong) or f"{len(SPOILED)} spoiled cases failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
