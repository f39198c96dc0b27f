"""The main job through the Python binding, and everything that a careless host may do. Usage: binding_test.py MODEL"""
import array
import copy
import gc
import os
import pathlib
import pickle
import sys
import tempfile
import unittest

from cairn import CairnError, Device, Model, Sampler, Sparse, State, Status, Stream
from small_model import MOUNTAIN, write_small_model

MODEL = sys.argv.pop(1)
NOTE = "Note: The code of Marlen Tovik is 4821.\nNote: The iron gate has the colour teal."
QUESTION = "\nQ: What is the code of Marlen Tovik?\nA: "


class BindingTest(unittest.TestCase):
    def setUp(self):
        self.device = Device("cpu", threads=1)
        self.model = Model(self.device, MODEL)
        self.state = State(self.model, rewind_window_tokens=1024)
        self.stream = Stream(self.model)

    def tearDown(self):
        for thing in (self.device, self.model, self.state, self.stream):
            thing.close()

    def ask(self, state):
        return "".join(self.stream.generate(state, QUESTION, stop="\n"))

    def test_remember_save_restore_ask(self):
        self.stream.read(self.state, NOTE)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "agent.state")
            self.state.save(path)
            with State.restored(self.model, path) as again:
                self.assertEqual(again.position, self.state.position)
                self.assertEqual(self.ask(again), "4821")
        data = self.state.to_bytes()
        with State.restored(self.model, memoryview(data)) as again:
            self.assertEqual(bytes(again.to_bytes()), bytes(data))
            self.assertEqual(self.ask(again), "4821")

    def test_fork_and_rewind(self):
        self.stream.read(self.state, NOTE)
        position = self.state.position
        before = bytes(self.state.to_bytes())
        with self.state.fork() as fork:
            self.ask(fork)
            self.assertEqual(bytes(self.state.to_bytes()), before)
        self.stream.read(self.state, "\nCorrection: The code of Marlen Tovik is 7730.")
        self.assertTrue(self.state.can_rewind(position))
        self.state.rewind(position)
        self.assertEqual(self.state.position, position)
        self.assertEqual(self.ask(self.state), "4821")

    def test_logits_are_lent_not_copied(self):
        self.stream.read(self.state, NOTE)
        first, second = self.stream.logits(), self.stream.logits
        self.assertEqual(len(first), self.model.vocab_size)
        self.assertTrue(first.readonly)
        self.assertEqual(list(first), list(self.state.last_logits()))
        piece = first[:4]
        with self.assertRaises(BufferError):
            second()
        piece.release()
        self.assertEqual(len(second()), self.model.vocab_size)
        with self.assertRaises(ValueError):
            first[0]

    def test_a_view_keeps_its_stream_alive(self):
        stream = Stream(self.model)
        stream.read(self.state, NOTE)
        view = stream.logits()
        del stream
        gc.collect()
        self.assertEqual(list(view), list(self.state.last_logits()))

    def test_batch_equals_singles(self):
        with self.state.fork() as other, self.state.fork() as alone:
            tokens = self.model.tokenize("ab")
            self.stream.decode([self.state, other], tokens)
            batch = bytes(self.stream.logits(1))
            self.stream.decode([alone], tokens[1:])
            self.assertEqual(bytes(self.stream.logits(0)), batch)

    def test_chat_template(self):
        self.assertEqual(self.model.chat_template, "")
        with tempfile.TemporaryDirectory() as folder:
            write_small_model(folder, "{{ messages[0].content }} " + MOUNTAIN)
            with Model(self.device, folder) as model:
                self.assertEqual(model.chat_template, "{{ messages[0].content }} " + MOUNTAIN)

    def test_pieces_are_whole_characters(self):
        with tempfile.TemporaryDirectory() as folder:
            write_small_model(folder)
            with Model(self.device, folder) as model, State(model) as state, Stream(model) as stream:
                pieces = list(stream.generate(state, "abc", max_tokens=5, stop="zz"))
        self.assertEqual(pieces, [MOUNTAIN] * 5)

    def test_errors_have_code_and_message(self):
        with self.assertRaises(CairnError) as caught:
            Model(self.device, "/nowhere/at/all.cairn")
        self.assertEqual(caught.exception.code, Status.NOT_FOUND)
        self.assertIn("/nowhere/at/all.cairn", str(caught.exception))
        with self.assertRaises(CairnError) as caught:
            Device("no such backend")
        self.assertEqual(caught.exception.code, Status.NOT_FOUND)
        with self.assertRaises(CairnError) as caught:
            self.state.restore(b"not a snapshot")
        self.assertEqual(caught.exception.code, Status.FORMAT)
        data = self.state.to_bytes()
        with self.assertRaises(CairnError) as caught:
            self.state.restore(data, max_bytes=len(data) - 1)
        self.assertEqual(caught.exception.code, Status.LIMIT_EXCEEDED)
        self.state.restore(data, max_bytes=len(data))
        with self.assertRaises(TypeError):
            self.stream.decode([self.state], array.array("d", [1.0]))

    def test_paths_may_be_any_name(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("\U0001f3d4.state", b"bytes.state", b"\xff\xfe.state", os.fsdecode(b"\xfe.state")):
                path = os.path.join(os.fsencode(folder), os.fsencode(name))
                self.state.save(path if isinstance(name, bytes) else os.fsdecode(path))
                self.assertTrue(os.path.exists(path), name)
                self.state.restore(pathlib.Path(os.fsdecode(path)))
            count = len(os.listdir(folder))
            for call in (self.state.save, self.state.restore, lambda path: Model(self.device, path), Device):
                with self.assertRaises(ValueError):
                    call(os.path.join(folder, "cut\0off"))
            self.assertEqual(len(os.listdir(folder)), count)

    def test_tokens_of_another_width_are_the_same_tokens(self):
        tokens = self.model.tokenize("ab")
        wide = array.array("q", tokens)
        rows = []
        for given in (tokens, wide, memoryview(wide), memoryview(array.array("i", [tokens[0], 0, tokens[1], 0]))[::2]):
            for sequences in (1, 2):
                states = [State(self.model) for _ in range(sequences)]
                self.stream.prefill([(state, given) for state in states])
                rows.append(bytes(self.stream.logits(sequences - 1)))
        self.assertEqual(len(set(rows)), 1)
        with self.assertRaises(TypeError):
            self.stream.prefill([(State(self.model), array.array("f", [1, 2]))] * 2)

    def test_a_handle_is_not_pickled(self):
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with self.assertRaises(TypeError):
                copied(self.state)

    def test_any_buffer_is_a_snapshot(self):
        self.stream.read(self.state, NOTE)
        words = array.array("b", bytes(self.state.to_bytes()))
        with State.restored(self.model, words) as again:
            self.assertEqual(again.position, self.state.position)

    def test_callbacks_may_throw_and_cancel(self):
        text = "x" * 4000

        def fail(done, total):
            raise KeyError("from the callback")

        with self.assertRaises(KeyError):
            self.stream.read(self.state, text, progress=fail)
        with self.assertRaises(CairnError) as caught:
            self.stream.read(self.state, text, progress=lambda done, total: False)
        self.assertEqual(caught.exception.code, Status.CANCELLED)
        seen = []
        self.state.reset()
        self.stream.read(self.state, text, sparse=Sparse.ADAPTIVE, progress=lambda *step: seen.append(step))
        self.assertEqual(seen[-1][0], seen[-1][1])

    def test_an_empty_prompt_goes_on_from_what_was_read(self):
        self.stream.read(self.state, NOTE + QUESTION)
        with State.restored(self.model, self.state.to_bytes()) as again, State(self.model) as other:
            self.stream.read(other, "The stream has other logits now.")
            for state in (self.state, again):
                self.assertEqual("".join(self.stream.generate(state, "", stop="\n")), "4821")

    def test_sampling_is_seeded(self):
        self.stream.read(self.state, NOTE)
        sampler = Sampler(temperature=1.0, top_k=20, seed=7)
        choices = {self.stream.sample(sampler, draw=3) for _ in range(5)}
        self.assertEqual(len(choices), 1)

    def test_closing_twice_and_parents_first(self):
        tokens = self.model.tokenize(NOTE)
        self.device.close()
        self.model.close()
        self.stream.prefill([(self.state, tokens)])
        self.assertEqual(self.state.position, len(tokens))
        for thing in (self.state, self.stream, self.model, self.device) * 2:
            thing.close()
        with self.assertRaises(CairnError) as caught:
            self.state.position
        self.assertEqual(caught.exception.code, Status.INVALID_HANDLE)
        self.assertEqual(str(caught.exception), "the state was closed")

    def test_collecting_in_any_order(self):
        for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
            things = [Device("cpu", threads=1)]
            things += [Model(things[0], MODEL)]
            things += [State(things[1]), Stream(things[1])]
            for index in order:
                things[index] = None
                gc.collect()

    def test_a_forked_process_is_refused_and_ends_quietly(self):
        self.stream.read(self.state, NOTE)
        child = os.fork()
        if child == 0:
            try:
                self.stream.read(self.state, NOTE)
            except CairnError as error:
                self.tearDown()
                gc.collect()
                os._exit(0 if error.code == Status.WRONG_STATE else 1)
            os._exit(2)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(self.ask(self.state), "4821")


if __name__ == "__main__":
    unittest.main()
