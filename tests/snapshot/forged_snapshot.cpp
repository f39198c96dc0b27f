#include "tests/snapshot/forged_snapshot.h"

#include "flatbuffers/flatbuffers.h"

namespace cairn::test {
namespace {

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

ForgedSnapshot ForgedSnapshot::of(const Bytes& bytes) {
  const SnapshotReader reader = AgentBench::take(SnapshotReader::inspect(memory_source(bytes.data(), bytes.size()), {}));
  ForgedSnapshot forged;
  forged.contents = reader.contents();
  for (const Section& section : reader.container().sections()) {
    Bytes payload(section.size_bytes);
    AgentBench::require_ok(reader.container().read(section, payload.data()));
    forged.sections[section.name] = {section.dtype, section.shape, std::move(payload)};
  }
  return forged;
}

Bytes ForgedSnapshot::build() const {
  ContainerPlan plan(ContainerKind::kSnapshot);
  for (const auto& [name, array] : sections) AgentBench::require_ok(plan.add(name, array.dtype, array.shape));
  AgentBench::require_ok(plan.finish());
  flatbuffers::FlatBufferBuilder builder;
  build_snapshot_header(builder, contents, plan);
  VectorSink sink;
  ContainerWriter writer(plan, sink);
  AgentBench::require_ok(writer.begin(builder.GetBufferPointer(), builder.GetSize()));
  for (const Section& section : plan.sections()) {
    Bytes bytes = sections.at(section.name).bytes;
    bytes.resize(section.size_bytes);
    AgentBench::require_ok(writer.write(bytes.data(), bytes.size()));
  }
  AgentBench::require_ok(writer.finish());
  return std::move(sink.bytes());
}

SnapshotSlot& ForgedSnapshot::slot(const std::string& end_of_name) {
  for (SnapshotSlot& slot : contents.slots) {
    if (ends_with(slot.name, end_of_name)) return slot;
  }
  FAIL("no slot ends with " << end_of_name);
  return contents.slots.front();
}

ForgedSnapshot::Array& ForgedSnapshot::section(const std::string& end_of_name) {
  for (auto& [name, array] : sections) {
    if (ends_with(name, end_of_name)) return array;
  }
  FAIL("no section ends with " << end_of_name);
  return sections.begin()->second;
}

}  // namespace cairn::test
