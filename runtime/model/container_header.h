// What building a header needs besides the generated code. Include it only in runtime/model and runtime/state.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "runtime/model/container_writer.h"
#include "schema/cairn_common_generated.h"

namespace cairn {

/// The header's `sections` field.
flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<schema::Section>>> build_sections(
    flatbuffers::FlatBufferBuilder& builder, const ContainerPlan& plan);

/// The header's library_version field.
const char* library_version();

/// FlatBuffers 2.0.8 verifies the length of a vector, but not that 64-bit elements are aligned: read them by copy.
/// Empty for a null vector. T: the element type.
template <class T>
std::vector<T> copy_vector(const flatbuffers::Vector<T>* vector) {
  std::vector<T> copy(vector ? vector->size() : 0);
  if (!copy.empty()) std::memcpy(copy.data(), vector->Data(), copy.size() * sizeof(T));
  return copy;
}

/// UTF-8 without NUL, at most max_bytes. FORMAT names the field.
Result<std::string> checked_text(const flatbuffers::String* text, const char* field, std::size_t max_bytes);

}  // namespace cairn
