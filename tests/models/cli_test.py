"""The `cairn` program: the main job, every command, and what it says when something is wrong.

Usage: cli_test.py PROGRAM MODEL [MODEL_FOLDER]
"""
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zlib

PROGRAM, MODEL = sys.argv[1:3]
FOLDER = sys.argv[3] if len(sys.argv) > 3 and os.path.isdir(sys.argv[3]) else None
del sys.argv[1:]
NOTE = "Note: The code of Marlen Tovik is 4821.\nNote: The iron gate has the colour teal.\n"
QUESTION = "What is the code of Marlen Tovik?"


def cairn(*arguments, text=""):
    return subprocess.run([PROGRAM, *arguments], input=text, capture_output=True, text=True, timeout=120)


def interrupt(process):
    """Ctrl-C, once the program has its handler."""
    caught = 0
    while process.poll() is None and not caught & 1 << (signal.SIGINT - 1):
        time.sleep(0.02)
        with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
    process.send_signal(signal.SIGINT)


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.state = os.path.join(self.folder.name, "agent.state")

    def tearDown(self):
        self.folder.cleanup()

    def good(self, *arguments, text=""):
        result = cairn(*arguments, text=text)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def bad(self, status, message, *arguments, text=""):
        result = cairn(*arguments, text=text)
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        self.assertIn(message, result.stdout + result.stderr)

    def remember(self, text=NOTE, *options):
        return self.good("remember", "--model", MODEL, "--state", self.state, "--text", "-", *options, text=text)

    def ask(self, *questions):
        return self.good("ask", "--model", MODEL, "--state", self.state, *questions).splitlines()

    def bytes_of_state(self):
        with open(self.state, "rb") as file:
            return file.read()

    def test_remember_then_ask_in_new_processes(self):
        self.assertIn("tokens/s", self.remember())
        before = self.bytes_of_state()
        self.assertEqual(self.ask(QUESTION), ["4821"])
        self.assertEqual(self.ask(QUESTION, "Which colour does the iron gate have?"), ["4821", "teal"])
        self.assertEqual(self.bytes_of_state(), before, "asking leaves the memory alone")
        self.assertEqual(os.stat(self.state).st_mode & 0o777, 0o600)

    def test_remember_goes_on(self):
        self.remember()
        self.remember("Correction: The code of Marlen Tovik is 7730.\n")
        self.assertEqual(self.ask(QUESTION), ["7730"])

    def test_remembering_nothing_changes_nothing(self):
        self.remember()
        before = self.bytes_of_state()
        self.remember("\n\n")
        self.assertEqual(self.bytes_of_state(), before)
        self.assertEqual(self.ask(QUESTION), ["4821"])

    def test_ask_with_save_remembers_the_question(self):
        self.remember()
        before = self.bytes_of_state()
        self.good("ask", "--model", MODEL, "--state", self.state, "--save", QUESTION)
        self.assertNotEqual(self.bytes_of_state(), before)

    def test_a_memory_that_is_not_there_is_an_error_unless_it_is_to_be_written(self):
        self.bad(1, self.state, "run", "--model", MODEL, "--state", self.state, "-n", "1", "x")
        self.bad(1, self.state, "chat", "--model", MODEL, "--state", self.state, text="hello\n")
        self.assertFalse(os.path.exists(self.state))
        self.good("run", "--model", MODEL, "--state", self.state, "--save", "-n", "1", "x")
        self.good("run", "--model", MODEL, "--state", self.state, "-n", "1", "x")

    def test_input_that_cannot_be_read_is_an_error(self):
        folder = os.open("/", os.O_RDONLY)
        try:
            for command in (["remember", "--state", self.state, "--text", "-"], ["run", "-"], ["chat"]):
                result = subprocess.run([PROGRAM, command[0], "--model", MODEL, *command[1:]], stdin=folder,
                                        capture_output=True, text=True, timeout=120)
                self.assertEqual(result.returncode, 1, command)
                self.assertIn("cannot read standard input: Is a directory", result.stderr)
        finally:
            os.close(folder)
        self.assertFalse(os.path.exists(self.state))

    def test_output_that_is_lost_is_an_error_and_nothing_is_saved(self):
        self.remember()
        before = self.bytes_of_state()
        ask = ["ask", "--model", MODEL, "--state", self.state]
        with open("/dev/full", "w", encoding="ascii") as full:
            for command in (["--version"], ["--help"], ["inspect", MODEL], [*ask, QUESTION], [*ask, "--save", QUESTION],
                            ["run", "--model", MODEL, "--state", self.state, "--save", "-n", "2", "x"]):
                result = subprocess.run([PROGRAM, *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
                self.assertEqual((result.returncode, result.stderr), (1, "cairn: cannot write the output\n"), command)
        self.assertEqual(self.bytes_of_state(), before)

    def test_an_interrupt_ends_waits_and_reading_with_130(self):
        waits = (["remember", "--state", self.state, "--text", "-"], ["run", "-"], ["chat"])
        for command, text in [(wait, "") for wait in waits] + [(["run", "-"], NOTE * 100_000)]:
            with subprocess.Popen([PROGRAM, command[0], "--model", MODEL, *command[1:]], text=True, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
                if text:
                    process.stdin.write(text)
                    process.stdin.close()
                interrupt(process)
                self.assertEqual(process.wait(60), 130, command)
                self.assertIn("interrupted", process.stderr.read())
        self.assertFalse(os.path.exists(self.state))

    def test_sparse_reading_is_told(self):
        self.remember(NOTE * 20, "--sparse")
        self.remember(NOTE * 20, "--sparse", "all")
        self.assertIn("sparsely", self.good("inspect", "--model", MODEL, self.state))

    def test_run_streams_and_is_seeded(self):
        options = ["run", "--model", MODEL, "-n", "20", "--temperature", "0.8", "--top-k", "40", "--seed", "3", "The "]
        self.assertEqual(self.good(*options), self.good(*options))
        self.assertGreater(len(self.good("run", "--model", MODEL, "-n", "20", "The ")), 10)

    def test_inspect_shows_models_and_memories(self):
        self.assertIn("sliding_window_attention", self.good("inspect", MODEL))
        self.remember()
        shown = self.good("inspect", "--model", MODEL, self.state)
        self.assertIn("slots written", shown)
        self.assertIn("head 1", shown)

    def test_plots_are_pictures(self):
        self.remember()
        png, svg = os.path.join(self.folder.name, "a.png"), os.path.join(self.folder.name, "a.svg")
        self.good("inspect", "--model", MODEL, self.state, "--plot", png)
        self.good("inspect", "--model", MODEL, self.state, "--plot", svg)
        with open(png, "rb") as file:
            data = file.read()
        self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", data[16:24])
        at, rows = 8, b""
        while at < len(data):
            size, kind = struct.unpack(">I4s", data[at:at + 8])
            body = data[at + 8:at + 8 + size]
            self.assertEqual(zlib.crc32(kind + body), struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0])
            rows += body if kind == b"IDAT" else b""
            at += 12 + size
        self.assertEqual(len(zlib.decompress(rows)), height * (1 + 3 * width))
        with open(svg, encoding="utf-8") as file:
            self.assertIn("</svg>", file.read())

    def test_doctor_finds_the_cpu(self):
        shown = self.good("doctor", "--model", MODEL)
        self.assertIn("+ cpu", shown)
        self.assertIn("- cuda" if "- cuda" in shown else "+ cuda", shown)

    def test_bench_writes_json(self):
        shown = self.good("bench", "--model", MODEL, "--batch", "1,2", "--thread-counts", "1", "--repeats", "1",
                          "--prefill-tokens", "128", "--decode-tokens", "4", "--json")
        self.assertEqual([row["batch"] for row in json.loads(shown)["results"]], [1, 2])

    def test_pack_makes_a_model(self):
        if FOLDER is None:
            self.skipTest("no model folder")
        packed = os.path.join(self.folder.name, "packed.cairn")
        self.good("pack", FOLDER, packed)
        with open(packed, "rb") as ours, open(MODEL, "rb") as shipped:
            self.assertEqual(ours.read(), shipped.read(), "packing gives the shipped model")

    def test_wrong_use_is_2_and_says_what(self):
        self.bad(2, "--state", "remember", "--text", "-")
        self.bad(2, "sometimes", "remember", "--state", self.state, "--text", "-", "--sparse", "sometimes")
        self.bad(2, "", "no-such-command")
        self.bad(2, "-1 not in range 0 to 2147483647", "run", "--max-tokens", "-1", "x")
        self.bad(2, "0 not in range 1 to 2147483647", "ask", "--state", self.state, "--max-tokens", "0", "x")
        self.bad(2, ".png or .svg", *self.inspect_with_plot("picture.gif"))
        self.bad(2, "--plot", "inspect", MODEL, "--plot", os.path.join(self.folder.name, "picture.png"))
        self.bad(2, "--group-size", "pack", "folder", "file", "--weights", "int8", "--group-size", "64")
        for command in (["run", "x"], ["chat"], ["remember", "--state", self.state, "--text", "-"]):
            self.bad(2, "--seed", command[0], "--model", MODEL, *command[1:], "--seed", "-1")

    def inspect_with_plot(self, name):
        self.remember()
        return ["inspect", "--model", MODEL, self.state, "--plot", os.path.join(self.folder.name, name)]

    def test_failures_are_1_and_say_what(self):
        self.bad(1, "nowhere.cairn", "ask", "--model", "/nowhere.cairn", "--state", self.state, "x")
        self.bad(1, self.state, "ask", "--model", MODEL, "--state", self.state, "x")
        self.bad(1, "no-backend", "run", "--model", MODEL, "--backend", "no-backend", "x")
        with open(self.state, "wb") as file:
            file.write(b"this is no memory")
        self.bad(1, self.state + ": not a Cairn file", "ask", "--model", MODEL, "--state", self.state, "x")
        self.bad(1, "cannot read '" + self.folder.name, "remember", "--model", MODEL, "--state", self.state, "--text", self.folder.name)
        self.bad(1, "neither", "inspect", self.state)
        self.assertEqual(self.bytes_of_state(), b"this is no memory")

    def test_help_is_everywhere(self):
        for command in ([], ["remember"], ["ask"], ["run"], ["pack"], ["inspect"], ["bench"], ["doctor"]):
            self.assertIn("Options", self.good(*command, "--help"))
        self.assertNotIn("=adaptive", self.good("remember", "--help"))


if __name__ == "__main__":
    unittest.main()
