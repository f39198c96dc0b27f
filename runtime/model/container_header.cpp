#include "runtime/model/container_header.h"

namespace cairn {

flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<schema::Section>>> build_sections(
    flatbuffers::FlatBufferBuilder& builder, const ContainerPlan& plan) {
  std::vector<flatbuffers::Offset<schema::Section>> sections;
  sections.reserve(plan.sections().size());
  for (const Section& section : plan.sections()) {
    const auto name = builder.CreateString(section.name);
    const auto shape = builder.CreateVector(section.shape);
    sections.push_back(schema::CreateSection(builder, name, static_cast<schema::DType>(section.dtype), shape,
                                             section.offset_bytes, section.size_bytes));
  }
  return builder.CreateVector(sections);
}

const char* library_version() { return CAIRN_VERSION_STRING; }

Result<std::string> checked_text(const flatbuffers::String* text, const char* field, std::size_t max_bytes) {
  if (!text) return Status::format_error("%s is missing", field);
  CAIRN_TRY(check_text({text->c_str(), text->size()}, field, max_bytes));
  return text->str();
}

}  // namespace cairn
