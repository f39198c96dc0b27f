"""Reads a text, keeps the memory, asks it. Usage: ask.py MODEL TEXT QUESTION (PYTHONPATH=build/release/python)"""
import sys

from cairn import Device, Model, State, Stream

model_path, text_path, question = sys.argv[1:]
with Device() as device, Model(device, model_path) as model, State(model) as state, Stream(model) as stream:
    with open(text_path, encoding="utf-8") as file:
        stream.read(state, file.read().rstrip("\n"))
    memory = state.to_bytes()
    print(f"{state.position} tokens read, the memory has {len(memory):,} bytes", file=sys.stderr)

    with State.restored(model, memory) as agent:
        for piece in stream.generate(agent, f"\nQ: {question}\nA: ", stop="\n"):
            print(piece, end="", flush=True)
    print()
