// Java: int[] and long[] are copied in (the library copies tokens anyway), bytes are direct ByteBuffers and stay where they
// are, lent floats come as a direct ByteBuffer over the library's memory. Text goes as bytes of UTF-8: JNI's own strings
// have another form of NUL and of what is beyond U+FFFF.
%{
static jbyteArray cairn_bytes_of(JNIEnv* jenv, const std::string& text) {
  jbyteArray bytes = jenv->NewByteArray((jsize)text.size());
  if (bytes) jenv->SetByteArrayRegion(bytes, 0, (jsize)text.size(), reinterpret_cast<const jbyte*>(text.data()));
  return bytes;
}
%}
%exception {
  try { $action }
  catch (const cairn_raw::Failure& failure) {
    jclass type = jenv->FindClass("org/cairn/CairnException");
    jmethodID make = type ? jenv->GetMethodID(type, "<init>", "(I[B)V") : nullptr;
    if (make) {
      jbyteArray text = cairn_bytes_of(jenv, failure.text);
      jobject thrown = text ? jenv->NewObject(type, make, (jint)failure.code, text) : nullptr;
      if (thrown) jenv->Throw((jthrowable)thrown);
    }
    return $null;
  }
  catch (Swig::DirectorException& thrown) { thrown.throwException(jenv); return $null; }
}
// Thrown as a temporary: SWIG's DirectorException cannot be copied safely.
%feature("director:except") %{
  jthrowable $error = jenv->ExceptionOccurred();
  if ($error) throw Swig::DirectorException(jenv, $error);
%}
%typemap(javafinalize) SWIGTYPE ""

%define CAIRN_TEXT(NAME)
%typemap(jni) const char* NAME "jbyteArray"
%typemap(jtype) const char* NAME "byte[]"
%typemap(jstype) const char* NAME "String"
%typemap(javain) const char* NAME
  "$javainput == null ? null : $javainput.getBytes(java.nio.charset.StandardCharsets.UTF_8)"
%typemap(in) const char* NAME (std::string copy) {
  $1 = nullptr;
  if ($input) {
    copy.resize((size_t)jenv->GetArrayLength($input));
    jenv->GetByteArrayRegion($input, 0, (jsize)copy.size(), reinterpret_cast<jbyte*>(&copy[0]));
    if (copy.find('\0') != std::string::npos) {
      SWIG_JavaThrowException(jenv, SWIG_JavaIllegalArgumentException, #NAME " holds a NUL");
      return $null;
    }
    $1 = ($1_ltype)copy.c_str();
  }
}
%typemap(argout) const char* NAME ""
%typemap(freearg) const char* NAME ""
%enddef
CAIRN_TEXT(path)
CAIRN_TEXT(backend)

%typemap(jni) std::string "jbyteArray"
%typemap(jtype) std::string "byte[]"
%typemap(jstype) std::string "String"
%typemap(javaout) std::string { return new String($jnicall, java.nio.charset.StandardCharsets.UTF_8); }
%typemap(out) std::string %{ $result = cairn_bytes_of(jenv, $1); %}

%define CAIRN_ARRAY(ELEMENT, NAME, SIZE, JNI, JAVA, GET)
%typemap(jni) (const ELEMENT* NAME, size_t SIZE) #JNI "Array"
%typemap(jtype) (const ELEMENT* NAME, size_t SIZE) #JAVA "[]"
%typemap(jstype) (const ELEMENT* NAME, size_t SIZE) #JAVA "[]"
%typemap(javain) (const ELEMENT* NAME, size_t SIZE) "$javainput"
%typemap(in) (const ELEMENT* NAME, size_t SIZE) (std::vector<JNI> copy) {
  if (!$input) { SWIG_JavaThrowException(jenv, SWIG_JavaNullPointerException, #NAME); return $null; }
  copy.resize((size_t)jenv->GetArrayLength($input));
  jenv->GET($input, 0, (jsize)copy.size(), copy.data());
  $1 = ($1_ltype)copy.data(); $2 = copy.size();
}
%typemap(freearg) (const ELEMENT* NAME, size_t SIZE) ""
%typemap(argout) (const ELEMENT* NAME, size_t SIZE) ""
%enddef
CAIRN_ARRAY(int32_t, tokens, token_count, jint, int, GetIntArrayRegion)
CAIRN_ARRAY(long long, states, state_count, jlong, long, GetLongArrayRegion)
CAIRN_ARRAY(long long, lengths, length_count, jlong, long, GetLongArrayRegion)

%define CAIRN_OUT_ARRAY(ELEMENT, NAME, JNI, JAVA, SET)
%typemap(jni) (ELEMENT* NAME, size_t room) #JNI "Array"
%typemap(jtype) (ELEMENT* NAME, size_t room) #JAVA "[]"
%typemap(jstype) (ELEMENT* NAME, size_t room) #JAVA "[]"
%typemap(javain) (ELEMENT* NAME, size_t room) "$javainput"
%typemap(in) (ELEMENT* NAME, size_t room) (std::vector<JNI> result) {
  if (!$input) { SWIG_JavaThrowException(jenv, SWIG_JavaNullPointerException, #NAME); return $null; }
  result.resize((size_t)jenv->GetArrayLength($input));
  $1 = ($1_ltype)result.data(); $2 = result.size();
}
%typemap(argout) (ELEMENT* NAME, size_t room) {
  jenv->SET($input, 0, (jsize)result$argnum.size(), result$argnum.data());
}
%typemap(freearg) (ELEMENT* NAME, size_t room) ""
%enddef
CAIRN_OUT_ARRAY(int32_t, out_tokens, jint, int, SetIntArrayRegion)
CAIRN_OUT_ARRAY(float, out_floats, jfloat, float, SetFloatArrayRegion)

%define CAIRN_BYTES(POINTER, NAME, SIZE)
%typemap(jni) (POINTER NAME, size_t SIZE) "jobject"
%typemap(jtype) (POINTER NAME, size_t SIZE) "java.nio.ByteBuffer"
%typemap(jstype) (POINTER NAME, size_t SIZE) "java.nio.ByteBuffer"
%typemap(javain) (POINTER NAME, size_t SIZE) "$javainput.slice()"
%typemap(in) (POINTER NAME, size_t SIZE) {
  $1 = jenv->GetDirectBufferAddress($input);
  if (!$1 && jenv->GetDirectBufferCapacity($input) != 0) {
    SWIG_JavaThrowException(jenv, SWIG_JavaIllegalArgumentException, "a direct ByteBuffer is needed");
    return $null;
  }
  $2 = (size_t)jenv->GetDirectBufferCapacity($input);
}
%typemap(argout) (POINTER NAME, size_t SIZE) ""
%typemap(freearg) (POINTER NAME, size_t SIZE) ""
%enddef
CAIRN_BYTES(const void*, data, size_bytes)
CAIRN_BYTES(void*, room, room_bytes)

%typemap(jni) LentFloats "jobject"
%typemap(jtype) LentFloats "java.nio.ByteBuffer"
%typemap(jstype) LentFloats "java.nio.ByteBuffer"
%typemap(javaout) LentFloats { return $jnicall; }
%typemap(out) LentFloats %{
  $result = jenv->NewDirectByteBuffer(const_cast<float*>($1.data), (jlong)($1.count * sizeof(float)));
%}
%typemap(jni) LentBytes "jbyteArray"
%typemap(jtype) LentBytes "byte[]"
%typemap(jstype) LentBytes "byte[]"
%typemap(javaout) LentBytes { return $jnicall; }
%typemap(out) LentBytes %{
  $result = jenv->NewByteArray((jsize)$1.count);
  if ($result) jenv->SetByteArrayRegion($result, 0, (jsize)$1.count, reinterpret_cast<const jbyte*>($1.data));
%}

%javaconst(1);
%pragma(java) jniclasscode=%{
  static {
    String path = System.getProperty("cairn.jni.path");
    if (path != null) System.load(path); else System.loadLibrary("cairn_jni");
  }
%}
