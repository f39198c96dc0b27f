"""Cairn: language models whose memory is a recurrent state.

    with Device() as device, Model(device, "wayfarer.cairn") as model, State(model) as state, Stream(model) as stream:
        stream.read(state, "Note: The code of the iron gate is 4821.")
        state.save("agent.state")
        print("".join(stream.generate(state, "\\nQ: What is the code of the iron gate?\\nA: ", stop="\\n")))

Every object may be closed twice, in any order, or left to the garbage collector. A closed object raises CairnError.
"""
import array
import ctypes
import os
import weakref
from dataclasses import dataclass
from enum import IntEnum

from . import cairn_raw as _raw_module
from .cairn_raw import Raw as _Raw

__all__ = ["CairnError", "Device", "Model", "Sampler", "Sparse", "State", "Status", "Stream", "version"]

Status = IntEnum("Status", {name[len("CAIRN_STATUS_"):]: getattr(_raw_module, name)
                            for name in dir(_raw_module) if name.startswith("CAIRN_STATUS_")})


class CairnError(RuntimeError):
    """A call failed. `code` is a Status where it is a known one; the message tells the thing, the value and the limit."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = Status(code) if code in Status._value2member_map_ else code


def _call(function, *arguments):
    try:
        return function(*arguments)
    except _raw_module.RawError as error:
        raise CairnError(*error.args) from None


def version():
    """The version of the library."""
    return _Raw.versionString()


class _Progress(_raw_module.Progress):
    """Hands progress to a Python callable; returning False cancels, and exceptions reach the caller."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def report(self, done, total):
        return self._function(done, total) is not False


def _progress(function):
    return None if function is None else _Progress(function)


class _Handle:
    """Owns a handle of the library: released by close(), by `with`, or by the garbage collector."""

    def __init__(self, handle, release):
        self._handle = handle
        self._finalizer = weakref.finalize(self, release, handle)

    def close(self):
        """Gives the handle back. May be called again."""
        self._handle = 0
        self._finalizer()

    @property
    def closed(self):
        return self._handle == 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce__(self):
        raise TypeError(f"a {type(self).__name__} can be neither copied nor pickled: it is a handle of this process")


class Device(_Handle):
    """Where models live. backend "auto" takes the first available; another name is that backend or an error."""

    def __init__(self, backend="auto", index=0, threads=0):
        super().__init__(_call(_Raw.deviceOpen, (backend or "auto").encode(), index, threads), _Raw.deviceRelease)

    @property
    def backend(self):
        return _call(_Raw.deviceBackend, self._handle)

    @property
    def name(self):
        return _call(_Raw.deviceName, self._handle)


class Model(_Handle):
    """Immutable weights on a device. progress(done_bytes, total_bytes) may return False to cancel."""

    def __init__(self, device, path, progress=None):
        super().__init__(_call(_Raw.modelLoad, device._handle, os.fsencode(path), _progress(progress)), _Raw.modelRelease)
        self.first_token = _call(_Raw.modelFirstToken, self._handle)

    @property
    def name(self):
        return _call(_Raw.modelName, self._handle)

    @property
    def vocab_size(self):
        return _call(_Raw.modelVocabSize, self._handle)

    @property
    def layer_count(self):
        return _call(_Raw.modelLayerCount, self._handle)

    @property
    def fresh_state_bytes(self):
        return _call(_Raw.modelFreshStateBytes, self._handle)

    def tokenize(self, text):
        """str or bytes to an array of int32. Adds no first token."""
        data = text.encode() if isinstance(text, str) else text
        tokens = array.array("i", bytes(4 * _call(_Raw.modelTokenCount, self._handle, data)))
        _call(_Raw.modelTokenize, self._handle, data, tokens)
        return tokens

    @property
    def chat_template(self):
        """Jinja text as the model's makers wrote it, never run by the library; empty when there is none."""
        room = bytearray(_call(_Raw.modelChatTemplateBytes, self._handle))
        _call(_Raw.modelChatTemplate, self._handle, room)
        return room.decode()

    def is_stop(self, token):
        return _call(_Raw.modelIsStop, self._handle, token)


class State(_Handle):
    """The memory of one agent."""

    def __init__(self, model, kv_capacity_tokens=0, rewind_window_tokens=0, *, _handle=None):
        handle = _handle or _call(_Raw.stateCreate, model._handle, kv_capacity_tokens, rewind_window_tokens)
        super().__init__(handle, _Raw.stateRelease)
        self.model = model

    @classmethod
    def restored(cls, model, source, **options):
        """A new state from a file, or from the bytes of a snapshot."""
        state = cls(model, **options)
        state.restore(source)
        return state

    def fork(self):
        return State(self.model, _handle=_call(_Raw.stateFork, self._handle))

    def reset(self):
        _call(_Raw.stateReset, self._handle)

    def rewind(self, position):
        _call(_Raw.stateRewind, self._handle, position)

    def can_rewind(self, position):
        return _call(_Raw.stateCanRewind, self._handle, position)

    @property
    def position(self):
        return _call(_Raw.statePosition, self._handle)

    @property
    def oldest_rewind_position(self):
        return _call(_Raw.stateOldestRewindPosition, self._handle)

    @property
    def bytes_held(self):
        return _call(_Raw.stateBytesHeld, self._handle)

    @property
    def bytes_shared(self):
        return _call(_Raw.stateBytesShared, self._handle)

    def save(self, path, progress=None):
        """Writes a snapshot: the old file or the new one, never a mixture."""
        _call(_Raw.stateSave, self._handle, os.fsencode(path), _progress(progress))

    def restore(self, source, progress=None, max_bytes=0):
        """From a path, or from any bytes-like object (read in place, no copy). All or nothing.

        A snapshot of more than max_bytes is refused with LIMIT_EXCEEDED; 0: no limit.
        """
        if isinstance(source, (str, os.PathLike)):
            _call(_Raw.stateRestore, self._handle, os.fsencode(source), max_bytes, _progress(progress))
        else:
            _call(_Raw.stateRestoreFrom, self._handle, source, max_bytes)

    def to_bytes(self):
        """The snapshot as a bytearray, written once, in place."""
        room = bytearray(_call(_Raw.stateSnapshotBytes, self._handle))
        written = _call(_Raw.stateSaveTo, self._handle, room)
        del room[written:]
        return room

    def last_logits(self):
        """The logits after the last token read, also after a restore: an array of float32."""
        logits = array.array("f", bytes(4 * self.model.vocab_size))
        _call(_Raw.stateLastLogits, self._handle, logits)
        return logits

    def _sample(self, s, draw, recent):
        """Chooses a token from them."""
        return _call(_Raw.stateSample, self._handle, s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty,
                     s.seed, draw, recent)


@dataclass
class Sampler:
    """How to choose a token; all zero is greedy. The same seed and position give the same choice."""
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 0.0
    min_p: float = 0.0
    repetition_penalty: float = 0.0
    recent_tokens: int = 64
    seed: int = 0


class Sparse(IntEnum):
    """How GDN layers select what they read."""
    ADAPTIVE = _raw_module.CAIRN_SPARSE_ADAPTIVE
    ALL = _raw_module.CAIRN_SPARSE_ALL
    RANDOM = _raw_module.CAIRN_SPARSE_RANDOM
    FIXED = _raw_module.CAIRN_SPARSE_FIXED


def _tokens(values):
    """int32 in one buffer: as it is when it is one already."""
    if isinstance(values, array.array) and values.typecode == "i":
        return values
    if isinstance(values, memoryview) and values.format == "i" and values.ndim == 1 and values.contiguous:
        return values
    return array.array("i", values)


class Stream(_Handle):
    """A queue of work with its logits. One thread at a time."""

    def __init__(self, model, max_sequences=0):
        self._lent = None
        super().__init__(_call(_Raw.streamCreate, model._handle, max_sequences), _Raw.streamRelease)
        self.model = model

    def close(self):
        self._take_back()
        super().close()

    def _take_back(self):
        """Before the memory of the last logits changes: refuses while somebody still looks at it."""
        if self._lent is None:
            return
        floats, view = (reference() for reference in self._lent)
        if view is not None:
            view.release()
        del view, floats
        if self._lent[0]() is not None:
            raise BufferError("the logits of the last call are still in use: release or copy them first")
        self._lent = None

    def read(self, state, text, sparse=None, seed=0, progress=None):
        """Reads str, bytes, or tokens into a state. A new state reads the model's first token before them.

        sparse: a Sparse policy. progress(done, total) in tokens; False cancels at a chunk border.
        """
        tokens = self.model.tokenize(text) if isinstance(text, (str, bytes)) else _tokens(text)
        if self.model.first_token >= 0 and state.position == 0:
            tokens = array.array("i", [self.model.first_token]) + array.array("i", tokens)
        self.prefill([(state, tokens)], sparse, seed, progress)

    def prefill(self, sequences, sparse=None, seed=0, progress=None):
        """Reads a list of (state, tokens) at once. One row of logits a sequence, after its last token."""
        self._take_back()
        states = array.array("q", [state._handle for state, _ in sequences])
        parts = [_tokens(tokens) for _, tokens in sequences]
        lengths = array.array("q", [len(part) for part in parts])
        joined = parts[0] if len(parts) == 1 else array.array("i", b"".join(bytes(part) for part in parts))
        _call(_Raw.streamPrefill, self._handle, states, joined, lengths, _raw_module.CAIRN_LOGITS_LAST,
              -1 if sparse is None else int(sparse), seed, _progress(progress))

    def decode(self, states, tokens):
        """Reads one token into each state. Row i of the logits belongs to states[i]."""
        self._take_back()
        handles = array.array("q", [state._handle for state in states])
        _call(_Raw.streamDecode, self._handle, handles, _tokens(tokens))

    def logits(self, row=0):
        """A row of the last call's logits as a read-only memoryview of float32: the library's own memory, no copy.

        Valid until the next call on this stream, which raises BufferError while numpy or a slice still holds it.
        """
        self._take_back()
        address, count = _call(_Raw.streamLogits, self._handle, row)
        floats = (ctypes.c_float * count).from_address(address)
        view = memoryview(floats).cast("B").cast("f").toreadonly()
        floats.stream = self  # whoever holds the view keeps the stream alive
        self._lent = (weakref.ref(floats), weakref.ref(view))
        return view

    def sample(self, sampler=Sampler(), row=0, draw=0, recent=()):
        """Chooses a token from a row of the logits, which stay where they are."""
        s = sampler
        return _call(_Raw.streamSample, self._handle, row, s.temperature, s.top_k, s.top_p, s.min_p,
                     s.repetition_penalty, s.seed, draw, _tokens(recent))

    def generate(self, state, prompt, max_tokens=256, sampler=Sampler(), stop=None):
        """Reads a prompt and yields what the model says, piece by piece: whole characters, up to `stop` (left out).

        An empty prompt goes on from what was read.
        """
        self.read(state, prompt)
        said = array.array("i")
        with _TextDecoder(self.model) as decoder:
            held = ""
            for _ in range(max_tokens):
                recent = said[max(0, len(said) - sampler.recent_tokens):]
                token = state._sample(sampler, state.position, recent)
                if self.model.is_stop(token):
                    break
                held += decoder.push(token)
                if stop and stop in held:
                    yield held[:held.index(stop)]
                    return
                # What could be the beginning of `stop` waits.
                ready = len(held) - (len(stop) - 1 if stop else 0)
                if ready > 0:
                    yield held[:ready]
                    held = held[ready:]
                said.append(token)
                self.decode([state], [token])
            held += decoder.finish()
            if held:
                yield held


class _TextDecoder(_Handle):
    def __init__(self, model):
        super().__init__(_call(_Raw.decoderCreate, model._handle), _Raw.decoderRelease)

    def push(self, token):
        return _call(_Raw.decoderPush, self._handle, token).decode()

    def finish(self):
        return _call(_Raw.decoderFinish, self._handle).decode()
