// C#: arrays are pointer and length, pinned by `fixed` in the idiomatic layer; lent memory comes as pointer and count.
%insert(runtime) %{
typedef void(SWIGSTDCALL* CairnThrow)(int, const char*);
static CairnThrow cairn_throw = nullptr;
extern "C" SWIGEXPORT void SWIGSTDCALL CairnRegisterThrow(CairnThrow function) { cairn_throw = function; }
%}
%pragma(csharp) imclasscode=%{
  // Stores a pending exception for the calling thread; the proxy raises it after the native call has returned.
  internal delegate void ThrowFunction(int code, string text);
  static readonly ThrowFunction keepAlive =
      (code, text) => SWIGPendingException.Set(new global::Cairn.CairnException(code, text));
  [global::System.Runtime.InteropServices.DllImport("$dllimport", EntryPoint = "CairnRegisterThrow")]
  static extern void CairnRegisterThrow(ThrowFunction function);
  static readonly bool isReady = Register();
  static bool Register() { CairnRegisterThrow(keepAlive); return true; }
%}
%exception %{
  try { $action }
  catch (const cairn_raw::Failure& failure) { cairn_throw(failure.code, failure.text.c_str()); return $null; }
%}

// size_t is 32 bits in SWIG's own maps.
%typemap(ctype) size_t "size_t"
%typemap(imtype) size_t "global::System.UIntPtr"
%typemap(cstype) size_t "ulong"
%typemap(csin) size_t "(global::System.UIntPtr)$csinput"

%define CAIRN_POINTER(POINTER, NAME)
%typemap(ctype) POINTER NAME "void *"
%typemap(imtype) POINTER NAME "global::System.IntPtr"
%typemap(cstype) POINTER NAME "global::System.IntPtr"
%typemap(csin) POINTER NAME "$csinput"
%typemap(in) POINTER NAME %{ $1 = ($1_ltype)$input; %}
%enddef
CAIRN_POINTER(const void*, data)
CAIRN_POINTER(void*, room)
CAIRN_POINTER(const int32_t*, tokens)
CAIRN_POINTER(int32_t*, out_tokens)
CAIRN_POINTER(float*, out_floats)
CAIRN_POINTER(const long long*, states)
CAIRN_POINTER(const long long*, lengths)

%define CAIRN_LENT(TYPE)
%typemap(ctype) TYPE "TYPE"
%typemap(imtype) TYPE "global::Cairn.Lent"
%typemap(cstype) TYPE "global::Cairn.Lent"
%typemap(out, null="TYPE{nullptr, 0}") TYPE %{ $result = $1; %}
%typemap(csout, excode=SWIGEXCODE) TYPE {
    global::Cairn.Lent lent = $imcall;$excode
    return lent;
  }
%enddef
CAIRN_LENT(LentFloats)
CAIRN_LENT(LentBytes)
