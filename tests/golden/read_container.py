#!/usr/bin/env python3
"""Reads a Cairn file by schema/FORMAT.md alone: a second opinion on the writer. Usage: read_container.py [--flip] FILE...

Python's standard library only; block checksums need libxxhash.so, which is looked for by ctypes, and are skipped without it.
With --flip every file must also be refused with any one of its bytes changed (a sample of them). Exit status 1: a file is wrong.
"""
import ctypes
import ctypes.util
import hashlib
import struct
import sys

TYPES = [("f32", 32), ("bf16", 16), ("f16", 16), ("f64", 64), ("i8", 8), ("i4", 4), ("u8", 8), ("i32", 32), ("i64", 64)]
NAME_BYTES = set(b"abcdefghijklmnopqrstuvwxyz0123456789_.")
TEXT_SECTIONS = ("tokenizer.chat_template", "tokenizer.data", "tokenizer.extra")
# The mixer tables in schema order: i integer, b boolean, e enumeration, f float. Slots of Layer: 1 delta ... 5 latent.
MIXERS = {1: "iiiiibeebfefii", 2: "iiiiiebbiifbebbbbbii", 3: "iiiiibbbbff", 4: "iiiiifbbbb", 5: "iiiiif"}
MIXER_OF_MECHANISM = [1, 1, 1, 1, 2, 3, 4, 5]
OUTPUT, ROUTING, MLP = "eef", "eeibb", "eiiiebbfiiib"


class Refused(Exception):
    pass


def require(claim, message):
    if not claim:
        raise Refused(message)


def align(number):
    return (number + 63) // 64 * 64


def load_xxh3():
    path = ctypes.util.find_library("xxhash")
    if not path:
        return None
    function = ctypes.CDLL(path).XXH3_64bits
    function.restype, function.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]
    return lambda data: function(bytes(data), len(data))


XXH3 = load_xxh3()


class Table:
    """A FlatBuffers table: fields by slot number."""

    SIZES = {"e": ("<B", 1), "b": ("<B", 1), "i": ("<i", 4), "f": ("<f", 4), "l": ("<q", 8), "L": ("<Q", 8)}

    def __init__(self, data, place):
        self.data, self.place = data, place
        vtable = place - struct.unpack_from("<i", data, place)[0]
        count = (struct.unpack_from("<H", data, vtable)[0] - 4) // 2
        self.fields = struct.unpack_from(f"<{count}H", data, vtable + 4)

    def offset(self, slot):
        return self.fields[slot] if slot < len(self.fields) else 0

    def scalar(self, slot, kind):
        code, _ = self.SIZES[kind]
        at = self.offset(slot)
        return struct.unpack_from(code, self.data, self.place + at)[0] if at else 0

    def follow(self, slot):
        at = self.place + self.offset(slot)
        return at + struct.unpack_from("<I", self.data, at)[0] if self.offset(slot) else None

    def table(self, slot):
        place = self.follow(slot)
        return None if place is None else Table(self.data, place)

    def text(self, slot):
        place = self.follow(slot)
        length = struct.unpack_from("<I", self.data, place)[0]
        raw = bytes(self.data[place + 4:place + 4 + length])
        require(b"\0" not in raw, "a text holds NUL")
        return raw.decode("utf-8")

    def vector(self, slot, code, size):
        place = self.follow(slot)
        count = struct.unpack_from("<I", self.data, place)[0]
        return [struct.unpack_from(code, self.data, place + 4 + size * i)[0] for i in range(count)]

    def tables(self, slot):
        place = self.follow(slot)
        return [Table(self.data, place + 4 + 4 * i + offset) for i, offset in enumerate(self.vector(slot, "<I", 4))]

    def struct_bytes(self, slot, size):
        at = self.place + self.offset(slot)
        return bytes(self.data[at:at + size])


class Section:
    def __init__(self, table):
        self.name, self.dtype = table.text(0), table.scalar(1, "e")
        self.shape = table.vector(2, "<q", 8)
        self.offset, self.size = table.scalar(3, "L"), table.scalar(4, "L")


def read_preamble(data):
    require(len(data) >= 128, "shorter than a preamble and a trailer")
    magic, kind, major, minor, order, flags, header_length, count = struct.unpack_from("<8s4sHHIIII", data, 0)
    payload_offset, payload_length, total, checksum = struct.unpack_from("<QQQQ", data, 32)
    require(magic == b"\x8fCAIRN\r\n", "another magic")
    require(order == 0x01020304, "another byte order")
    require(major == 1, f"version {major}.{minor}")
    require(flags >> 16 == 0, "an unknown critical flag")
    require(kind in (b"MODL", b"SNAP"), f"unknown kind {kind}")
    require(total == len(data), f"{len(data)} bytes, but the preamble says {total}")
    require(1 <= header_length <= 1 << 26 and payload_offset == align(64 + header_length), "header and payload disagree")
    require(payload_offset + payload_length <= total, "the payload is past the end")
    header = data[64:64 + header_length]
    require(not any(data[64 + header_length:payload_offset]), "padding after the header")
    if XXH3:
        require(XXH3(data[:56] + header) == checksum, "the header's checksum")
    return kind, header, count, payload_offset, payload_length


def read_sections(root, count, payload_length, is_snapshot):
    sections = [Section(table) for table in root.tables(0)]
    require(len(sections) == count, "the number of sections")
    end, previous = 0, ""
    for section in sections:
        require(1 <= len(section.name) <= 256 and set(section.name.encode()) <= NAME_BYTES, f"name {section.name!r}")
        require(previous < section.name, f"'{section.name}' is not sorted")
        require(section.dtype < len(TYPES) and 1 <= len(section.shape) <= 6, f"type or rank of '{section.name}'")
        elements = 1
        for dim in section.shape:
            require((0 if is_snapshot else 1) <= dim < 1 << 31, f"dimension {dim} of '{section.name}'")
            elements *= dim
        require(section.size == (elements * TYPES[section.dtype][1] + 7) // 8, f"size of '{section.name}'")
        require(section.offset == align(end), f"place of '{section.name}'")
        end, previous = section.offset + section.size, section.name
    require(end == payload_length, "the end of the payload")
    return sections


def read_trailer(data, header, sections, payload_offset, payload_length):
    blocks = sum((section.size + (1 << 20) - 1) >> 20 for section in sections)
    table_offset = align(payload_offset + payload_length)
    trailer = align(table_offset + 8 * blocks)
    require(trailer + 64 == len(data), "the length does not follow from the sections")
    digest, block_count, table_place, zero, end = struct.unpack_from("<32sQQQ8s", data, trailer)
    require((block_count, table_place, zero, end) == (blocks, table_offset, 0, b"CAIRNEND"), "the trailer")
    table = data[table_offset:table_offset + 8 * blocks]
    require(not any(data[table_offset + 8 * blocks:trailer]), "padding after the table")
    require(hashlib.blake2b(data[:64] + header + table, digest_size=32).digest() == digest, "the digest")
    return struct.unpack(f"<{blocks}Q", table)


def check_payload(data, sections, checksums, payload_offset):
    """Returns the block checksums of each section by name."""
    by_name, block, end = {}, 0, payload_offset
    for section in sections:
        begin = payload_offset + section.offset
        require(not any(data[end:begin]), f"padding before '{section.name}'")
        end = begin + section.size
        count = (section.size + (1 << 20) - 1) >> 20
        by_name[section.name] = checksums[block:block + count]
        for k in range(count if XXH3 else 0):
            piece = data[begin + (k << 20):min(begin + ((k + 1) << 20), end)]
            require(XXH3(piece) == checksums[block + k], f"block {k} of '{section.name}'")
        block += count
    require(not any(data[end:align(end)]), "padding after the payload")
    return by_name


def numbers(table, kinds):
    """The fields of a table as the fingerprint takes them: 4 bytes each."""
    out = b""
    for slot, kind in enumerate(kinds):
        value = table.scalar(slot, kind)
        out += struct.pack("<f", value) if kind == "f" else struct.pack("<I", value & 0xffffffff)
    return out


def attention_numbers(table):
    out, own = numbers(table, MIXERS[4]), (table.scalar(10, "f"), table.scalar(11, "e"))
    return out + struct.pack("<ifI", -1, *own) if any(own) else out


def fingerprint(root, sections, checksums):
    def text(value):
        raw = value.encode()
        return struct.pack("<I", len(raw)) + raw

    def content(section):
        if section is None:
            return struct.pack("<Q", 0)
        found = checksums[section.name]
        return struct.pack(f"<Q{len(found)}Q", section.size, *found)

    layers = root.tables(11)
    parts = [text("cairn-model/1"), struct.pack("<ii", root.scalar(5, "i"), root.scalar(6, "i")),
             struct.pack("<f", root.scalar(8, "f")), struct.pack("<III", root.scalar(9, "b"), root.scalar(10, "b"), len(layers))]
    for layer in layers:
        mechanism = layer.scalar(0, "e")
        slot = MIXER_OF_MECHANISM[mechanism]
        require([s for s in MIXERS if layer.table(s)] == [slot], "the mixer tables of a layer")
        mixer = layer.table(slot)
        parts += [struct.pack("<I", mechanism), attention_numbers(mixer) if slot == 4 else numbers(mixer, MIXERS[slot]), numbers(layer.table(6), OUTPUT),
                  numbers(layer.table(7), ROUTING), numbers(layer.table(8), MLP), struct.pack("<I", layer.scalar(9, "b"))]
        if layer.table(10):
            require(slot == 2, "attention beside another mixer than sse")
            parts.append(attention_numbers(layer.table(10)))
    groups = {entry.text(0): entry.scalar(1, "i") for entry in root.tables(13)}
    by_name = {section.name: section for section in sections}
    tensors = [s for s in sections if s.name not in TEXT_SECTIONS and not (s.name.endswith(".scales") and s.name[:-7] in groups)]
    parts.append(struct.pack("<I", len(tensors)))
    for tensor in tensors:
        parts += [text(tensor.name), struct.pack("<III", tensor.dtype, groups.get(tensor.name, 0), len(tensor.shape)),
                  struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape), content(tensor),
                  content(by_name[tensor.name + ".scales"] if tensor.name in groups else None)]
    return hashlib.blake2b(b"".join(parts), digest_size=32).digest()


def read(data):
    """Checks everything that FORMAT.md promises; returns one line about the file."""
    kind, header, count, payload_offset, payload_length = read_preamble(data)
    is_snapshot = kind == b"SNAP"
    require(len(header) >= 8 and header[4:8] == (b"CRNS" if is_snapshot else b"CRNM"), "the header's identifier")
    root = Table(header, struct.unpack_from("<I", header, 0)[0])
    sections = read_sections(root, count, payload_length, is_snapshot)
    checksums = read_trailer(data, header, sections, payload_offset, payload_length)
    by_name = check_payload(data, sections, checksums, payload_offset)
    if is_snapshot:
        return f"snapshot of '{root.text(3)}' at position {root.scalar(6, 'l')}, {len(sections)} sections"
    stored = root.struct_bytes(2, 32)
    require(fingerprint(root, sections, by_name) == stored, "the fingerprint")
    return f"model '{root.text(4)}' ({root.text(3)}), {len(root.tables(11))} layers, {len(sections)} sections, {stored.hex()[:16]}"


def is_refused(data):
    try:
        read(data)
    except (Refused, struct.error, UnicodeDecodeError, IndexError, TypeError, AttributeError, OverflowError, MemoryError):
        return True
    return False


def check_flips(data):
    step = max(1, len(data) // 200)
    for place in range(0, len(data), step):
        if place in (14, 15, 20, 21) or not XXH3:
            continue
        changed = bytearray(data)
        changed[place] ^= 0x10
        require(is_refused(bytes(changed)), f"byte {place} was changed, and nothing was noticed")


def main():
    flips = "--flip" in sys.argv[1:]
    paths = [path for path in sys.argv[1:] if path != "--flip"]
    if not paths:
        sys.exit(__doc__)
    if not XXH3:
        print("note: libxxhash was not found: block checksums are not checked")
    failures = 0
    for path in paths:
        with open(path, "rb") as file:
            data = file.read()
        try:
            print(f"{path}: {read(data)}")
            if flips:
                check_flips(data)
        except Refused as refusal:
            print(f"{path}: REFUSED: {refusal}")
            failures += 1
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
