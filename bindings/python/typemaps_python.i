// Python: arrays are any C-contiguous buffer of the right format, never copied; lent memory comes as (address, count).
%{
static PyObject* cairn_error_type = nullptr;

/// Holds a buffer while a call runs.
struct HeldBuffer {
  Py_buffer view = {};
  bool held = false;
  bool take(PyObject* object, int flags, char format, const char* wanted) {
    if (PyObject_GetBuffer(object, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags) != 0) return false;
    held = true;
    const char* actual = view.format != nullptr ? view.format : "B";
    if (format == 0 || (actual[0] == format && actual[1] == 0)) return true;
    // long and long long are both 64 bits here
    if (format == 'q' && actual[0] == 'l' && view.itemsize == 8) return true;
    PyErr_Format(PyExc_TypeError, "%s is needed, not format '%s'", wanted, actual);
    return false;
  }
  void drop() {
    if (held) PyBuffer_Release(&view);
    held = false;
  }
};
%}
// With the lock of the interpreter held, so that no other thread gives back what these lend between call and use.
%nothread Raw::streamLogits;
%nothread Raw::streamSample;
%nothread Raw::streamRelease;
%nothread Raw::decoderPush;
%nothread Raw::decoderFinish;
%nothread Raw::decoderRelease;

%init %{
  cairn_error_type = PyErr_NewException("cairn.RawError", PyExc_RuntimeError, nullptr);
  Py_INCREF(cairn_error_type);
  PyModule_AddObject(m, "RawError", cairn_error_type);
%}
%pythoncode %{ RawError = _cairn_raw.RawError %}

%exception {
  try { $action }
  catch (const cairn_raw::Failure& failure) {
    SWIG_PYTHON_THREAD_BEGIN_BLOCK;
    PyObject* value = Py_BuildValue("(is)", failure.code, failure.text.c_str());
    PyErr_SetObject(cairn_error_type, value);
    Py_XDECREF(value);
    SWIG_PYTHON_THREAD_END_BLOCK;
    SWIG_fail;
  }
  catch (const Swig::DirectorException&) { SWIG_fail; }
}
%feature("director:except") { if ($error != NULL) throw Swig::DirectorMethodException(); }

%define CAIRN_BUFFER(POINTER, NAME, SIZE, FLAGS, FORMAT, WANTED, ELEMENT)
%typemap(in) (POINTER NAME, size_t SIZE) (HeldBuffer taken) {
  if (!taken.take($input, FLAGS, FORMAT, WANTED)) { taken.drop(); SWIG_fail; }
  $1 = ($1_ltype)taken.view.buf; $2 = (size_t)(taken.view.len / ELEMENT);
}
%typemap(freearg) (POINTER NAME, size_t SIZE) { taken$argnum.drop(); }
%typemap(typecheck, precedence=SWIG_TYPECHECK_POINTER) (POINTER NAME, size_t SIZE) { $1 = PyObject_CheckBuffer($input); }
%enddef
CAIRN_BUFFER(const void*, data, size_bytes, PyBUF_SIMPLE, 0, "bytes", 1)
CAIRN_BUFFER(void*, room, room_bytes, PyBUF_WRITABLE, 0, "a writable buffer", 1)
CAIRN_BUFFER(const int32_t*, tokens, token_count, PyBUF_SIMPLE, 'i', "a buffer of int32", 4)
CAIRN_BUFFER(int32_t*, out_tokens, room, PyBUF_WRITABLE, 'i', "a writable buffer of int32", 4)
CAIRN_BUFFER(float*, out_floats, room, PyBUF_WRITABLE, 'f', "a writable buffer of float32", 4)
CAIRN_BUFFER(const long long*, states, state_count, PyBUF_SIMPLE, 'q', "a buffer of int64", 8)
CAIRN_BUFFER(const long long*, lengths, length_count, PyBUF_SIMPLE, 'q', "a buffer of int64", 8)

// Bytes, so that names that are no text pass too; ValueError when they hold a NUL.
%typemap(in) const char* path, const char* backend {
  if (PyBytes_AsStringAndSize($input, (char**)&$1, nullptr) != 0) SWIG_fail;
}
%typemap(freearg) const char* path, const char* backend ""
%typemap(typecheck, precedence=SWIG_TYPECHECK_STRING) const char* path, const char* backend { $1 = PyBytes_Check($input); }

%typemap(out) LentFloats {
  $result = Py_BuildValue("(Kn)", (unsigned long long)(uintptr_t)$1.data, (Py_ssize_t)$1.count);
}
%typemap(out) LentBytes { $result = PyBytes_FromStringAndSize($1.data, (Py_ssize_t)$1.count); }
