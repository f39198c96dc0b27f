// Moves tensors from a source of weights into a ModelDescription, under Cairn's names, each one exactly once.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "runtime/import/safetensors_reader.h"
#include "runtime/model/model_description.h"

namespace cairn {

/// F32, BF16 and F16 tensors are used where they lie; F64 becomes f32, F8 becomes bf16 (exactly). Integers are refused.
class ImportedTensors {
 public:
  ImportedTensors(SafetensorsMap sources, ModelDescription& description)
      : sources_(std::move(sources)), description_(description) {}

  bool has(const std::string& source) const { return sources_.contains(source); }
  /// Shape of a source tensor; empty when it is absent.
  std::vector<std::int64_t> shape(const std::string& source) const;
  const SafetensorsMap& sources() const { return sources_; }

  /// The whole tensor as `target`, with this shape: the same elements in the same order (dims of 1 may come and go).
  Status take(const std::string& source, const std::string& target, const std::vector<std::int64_t>& shape);
  /// A matrix that lies the other way round in the source, [shape[1], shape[0]]; copied.
  Status take_transposed(const std::string& source, const std::string& target, const std::vector<std::int64_t>& shape);
  /// Rows [first, first + shape[0]) of a source, whose first dimension must be source_rows.
  Status take_rows(const std::string& source, std::int64_t source_rows, std::int64_t first, const std::string& target,
                   const std::vector<std::int64_t>& shape);
  /// Part of a source of exactly source_shape, from `first_element` on (for example one expert of many), as `target`.
  Status take_part(const std::string& source, const std::vector<std::int64_t>& source_shape,
                   std::uint64_t first_element, const std::string& target, const std::vector<std::int64_t>& shape);
  /// Elements that the importer has made itself (reordered, split, folded); copied. bytes: the tensor's size.
  Status add(const std::string& target, DType dtype, std::vector<std::int64_t> shape, const void* elements,
             std::uint64_t size_bytes);
  /// The elements as f32; does not mark the source as used.
  Result<std::vector<float>> as_f32(const std::string& source) const;
  void mark_used(const std::string& source) { used_.insert(source); }
  /// Tensors that Cairn does not need, by the beginning of their names.
  void ignore_prefix(const std::string& prefix);

  /// Sorts the description's tensors. FORMAT: a source that nobody took, by name.
  Status finish();

 private:
  Result<const SafetensorsEntry*> require(const std::string& source) const;
  Status add_view(const std::string& target, const std::vector<std::int64_t>& shape, SafetensorsType type,
                  const std::byte* data, std::shared_ptr<const void> owner);

  SafetensorsMap sources_;
  ModelDescription& description_;
  std::set<std::string> used_;
};

}  // namespace cairn
