#!/usr/bin/env python3
"""Checks the shape of the tree: the rules that a compiler does not see. Usage: repo_checks.py CHECK [LIBRARY]

Each check prints what breaks the rule, one line each, and exits 1 when there is any. Python's standard library only.
"""
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE_ENDINGS = {".h", ".c", ".cc", ".cpp", ".hpp", ".cu", ".cuh", ".hip", ".inc", ".i"}
TOP_LEVEL = {"CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "include", "runtime", "backends", "bindings",
             "schema", "samples", "tests"}
FORBIDDEN_NAMES = re.compile(r"(^|[_./])(utils?|helpers?|misc|common|new|v2|impl2|stage\d*)([_./]|$)|(^|/)(docs|cmake)/")
ALLOWED_NAMES = {"schema/cairn_common.fbs", "schema/released/v1/cairn_common.fbs"}

# Who may include whom. A room may always include itself. "generated" is schema/*_generated.h.
STATUS_CODES = "include/cairn/status.h"
RUNTIME_BASE = ["runtime/support", "backends/interface"]
RUNTIME_LOW = ["runtime/device"] + RUNTIME_BASE
RUNTIME_DATA = ["runtime/state", "runtime/model", "runtime/import", "runtime/text"] + RUNTIME_LOW
RUNTIME_LAYERS = ["runtime/layers"] + RUNTIME_DATA
RUNTIME_EXECUTION = ["runtime/execution"] + RUNTIME_LAYERS
MAY_INCLUDE = {
    "include/cairn": ["include/cairn"],
    "bindings": ["include/cairn"],
    "samples": ["include/cairn"],
    "tests/api": ["include/cairn", "tests/support"],
    "tests/models": ["include/cairn", "tests/support"],
    "tests/install": ["include/cairn"],
    # include/cairn in the runtime: the codes, structs and callback types that reach the inside unchanged.
    "runtime/support": ["backends/interface", "include/cairn"],
    "runtime/device": RUNTIME_BASE + ["include/cairn"],
    "runtime/model": RUNTIME_DATA + ["generated", "include/cairn"],
    "runtime/state": RUNTIME_DATA + ["generated", "include/cairn"],
    "runtime/import": RUNTIME_DATA + ["include/cairn"],
    "runtime/text": RUNTIME_DATA + ["include/cairn"],
    "runtime/layers": RUNTIME_LAYERS,
    "runtime/execution": RUNTIME_EXECUTION + ["include/cairn"],
    "runtime/api": RUNTIME_EXECUTION + ["include/cairn"],
    # Of the public headers a backend may know the status codes.
    "backends/interface": [STATUS_CODES],
    "backends/reference": ["backends/interface", STATUS_CODES],
    "backends/cpu": ["backends/interface", "backends/reference", STATUS_CODES],
    "backends/gpu": ["backends/interface", STATUS_CODES],
    "backends/cuda": ["backends/interface", "backends/gpu", STATUS_CODES],
    "backends/rocm": ["backends/interface", "backends/gpu", STATUS_CODES],
}
VENDOR_ROOMS = ("backends/gpu/platform/", "backends/cuda/", "backends/rocm/")
VENDOR_WORDS = re.compile(r"\b(cuda[A-Z_]\w*|hip[A-Z_]\w*|__shfl\w*|__CUDA\w*|__HIP\w*|"
                          r"cublas\w*|rocblas\w*|nvcc|hipcc)\b|[<\"](cuda|hip)[/_.\w]*[>\"]")
LIBRARY_NEVER = re.compile(r"\bthrow\b(?!\s*;)|\bstd::(cout|cerr|clog|terminate|abort|exit)\b|(?<![\w:.])(printf|puts|putchar|exit|abort)\s*\("
                           r"|\bfprintf\s*\(|\bgetenv\b|\bassert\s*\(\s*false")
LIBRARY_MAY = {"getenv": "runtime/device/"}  # the plug-in loader reads CAIRN_BACKEND_PATH


def tracked():
    listing = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True)
    if listing.returncode == 0 and listing.stdout:
        paths = listing.stdout.splitlines()
    else:
        paths = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if p.is_file() and "build" not in p.parts]
    return sorted(p for p in paths if (ROOT / p).is_file() and not p.startswith(".git/"))


def is_source(path):
    return Path(path).suffix in SOURCE_ENDINGS


def text_of(path):
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def code_of(path):
    """The text without comments and with empty string literals; lines keep their numbers."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)

    def blank(match):
        token = match.group(0)
        return '""' if token[0] == '"' else "\n" * token.count("\n")

    return pattern.sub(blank, text_of(path))


def room_of(path):
    """The longest room that holds the path."""
    rooms = [room for room in MAY_INCLUDE if path.startswith(room + "/")]
    return max(rooms, key=len) if rooms else None


def resolve(path, name, known):
    """Where an include of this tree lives, or None for a system header."""
    if "schema/" in name and name.endswith("_generated.h"):
        return "generated/" + name
    beside = str((Path(path).parent / name))
    for candidate in (beside, name, "include/" + name):
        if candidate in known:
            return candidate
    return None


def check_includes():
    known = set(tracked())
    problems = []
    for path in known:
        room = room_of(path)
        if not is_source(path) or room is None:
            continue
        for number, line in enumerate(text_of(path).splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
            target = resolve(path, match.group(1), known) if match else None
            if target is None or target.startswith(room + "/"):
                continue
            if not any(target == allowed or target.startswith(allowed + "/") for allowed in MAY_INCLUDE[room]):
                problems.append(f"{path}:{number}: {room} may not include {target}")
    for path in known:
        if is_source(path) and not path.startswith("backends/cpu/onednn_") and re.search(r"#\s*include\s*[<\"](oneapi/|dnnl)", text_of(path)):
            problems.append(f"{path}: oneDNN is known to backends/cpu/onednn_* alone")
    return problems


def check_names():
    problems = []
    by_name = defaultdict(list)
    for path in tracked():
        name = Path(path).name
        if name not in ("CMakeLists.txt", "README.md") and not path.startswith(("schema/released/", "include/", ".")):
            by_name[name].append(path)
        if FORBIDDEN_NAMES.search(path) and path not in ALLOWED_NAMES:
            problems.append(f"{path}: the name says nothing about what it holds")
        top = path.split("/")[0]
        if top not in TOP_LEVEL and not top.startswith("."):
            problems.append(f"{path}: '{top}' is no room of the tree")
    problems += [f"'{name}' is used twice: {', '.join(paths)}" for name, paths in by_name.items() if len(paths) > 1]
    return problems


def check_sizes():
    problems = []
    for path in tracked():
        if not (is_source(path) or Path(path).suffix in (".py", ".java", ".cs", ".sh", ".fbs")):
            continue
        lines = text_of(path).splitlines()
        limit = 300 if path.startswith("include/cairn/") else 700
        if len(lines) > limit:
            problems.append(f"{path}: {len(lines)} lines (limit: {limit})")
        elif len(lines) > 430:
            print(f"note: {path}: {len(lines)} lines: more than 430 needs a reason")
    return problems


def check_vendor_words():
    problems = []
    for path in tracked():
        if not is_source(path) or not path.startswith(("runtime/", "backends/", "include/")) or path.startswith(VENDOR_ROOMS):
            continue
        for number, line in enumerate(code_of(path).splitlines(), 1):
            match = VENDOR_WORDS.search(line)
            if match:
                problems.append(f"{path}:{number}: '{match.group(0)}' is a vendor word")
    return problems


def check_library_manners():
    """The library never throws, prints, exits, or reads the environment."""
    problems = []
    for path in tracked():
        if not is_source(path) or not path.startswith(("runtime/", "backends/")):
            continue
        for number, line in enumerate(code_of(path).splitlines(), 1):
            match = LIBRARY_NEVER.search(line)
            if match and not path.startswith(LIBRARY_MAY.get(match.group(0).strip(), "nowhere")):
                problems.append(f"{path}:{number}: '{match.group(0).strip()}' has no place in the library")
    return problems


def check_readmes():
    rooms = {str(Path(path).parent) for path in tracked() if is_source(path)}
    # Told in the README of the room above.
    exempt = {"include/cairn", "schema/released/v1", "backends/gpu/platform", "backends/gpu/kernels", "bindings/java",
              "bindings/csharp", "bindings/python", "tests/install/outside"}
    needed = {room for room in rooms if room not in exempt and not room.startswith(".")}
    needed |= {top for top in TOP_LEVEL if (ROOT / top).is_dir()}
    return [f"{room}: no README.md (what lives here, what it may know, how to add to it)"
            for room in sorted(needed) if not (ROOT / room / "README.md").is_file()]


def check_readme_sample():
    """The program in the README is the one that is compiled and run."""
    text = text_of("samples/hello.c")
    program = text[text.index("#include"):].rstrip("\n")
    return [] if program in text_of("README.md") else ["README.md does not hold samples/hello.c as it is"]


def declared_functions():
    names = set()
    for header in (ROOT / "include/cairn").rglob("*.h"):
        names |= set(re.findall(r"CAIRN_API[^;(]*?\b(cairn_\w+)\s*\(", header.read_text()))
    return names


def exported_by(library):
    listing = subprocess.run(["nm", "-D", "--defined-only", "--format=posix", library], capture_output=True, text=True, check=True)
    return {line.split()[0].split("@")[0] for line in listing.stdout.splitlines()}


def check_plugin_symbols():
    """A plug-in exports its entry alone."""
    exported = exported_by(sys.argv[2])
    problems = [f"{name}: exported by a plug-in" for name in sorted(exported - {"cairn_backend_entry"})]
    return problems + ([] if "cairn_backend_entry" in exported else ["cairn_backend_entry: not exported"])


def check_symbols():
    exported = exported_by(sys.argv[2])
    exported = {name for name in exported if not re.fullmatch(r"CAIRN_[0-9]+", name)}
    declared = declared_functions()
    promised = set((Path(__file__).parent / "exported_symbols.txt").read_text().split())
    problems = [f"{name}: exported, but no header declares it" for name in sorted(exported - declared)]
    problems += [f"{name}: declared, but not exported" for name in sorted(declared - exported)]
    problems += [f"{name}: in exported_symbols.txt, but not exported" for name in sorted(promised - exported)]
    problems += [f"{name}: not in exported_symbols.txt: add it with the changelog line" for name in sorted(exported - promised)]
    return problems


CHECKS = {name[len("check_"):]: function for name, function in list(globals().items()) if name.startswith("check_")}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in CHECKS:
        sys.exit(f"usage: repo_checks.py {{{','.join(CHECKS)}}} [LIBRARY]")
    problems = CHECKS[sys.argv[1]]()
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
