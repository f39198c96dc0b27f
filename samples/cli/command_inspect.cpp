#include <cstdio>

#include "commands.h"
#include "progress_bar.h"
#include "slot_picture.h"
#include "text_table.h"

namespace cairn_cli {

static std::string hex(const uint8_t* bytes, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", bytes[i]);
    text += pair;
  }
  return text;
}

static void print_line(const char* label, const std::string& value) { std::printf("%-14s %s\n", label, value.c_str()); }

static std::string number(int64_t value) { return value == 0 ? "" : with_commas(static_cast<uint64_t>(value)); }

static std::vector<cairn_layer_info> layers_of(const Session& session) {
  std::vector<cairn_layer_info> layers;
  for (int i = 0; i < session.info().layer_count; ++i) {
    cairn_layer_info layer = CAIRN_LAYER_INFO_INIT;
    check(cairn_model_get_layer_info(session.model(), i, &layer), "layer");
    layers.push_back(layer);
  }
  return layers;
}

static std::string heads_of(const cairn_layer_info& layer) {
  if (layer.key_heads == layer.value_heads) return std::to_string(layer.key_heads);
  return std::to_string(layer.key_heads) + "/" + std::to_string(layer.value_heads);
}

static void inspect_model(const Session& session) {
  const cairn_model_info& info = session.info();
  print_line("model", session.model_path());
  print_line("name", std::string(info.name) + " (" + info.architecture + ")");
  print_line("parameters", with_commas(info.parameter_count) + ", weights " + human_bytes(info.weight_bytes));
  print_line("dimensions", "model " + std::to_string(info.model_dim) + ", vocabulary " + std::to_string(info.vocab_size));
  print_line("trained for", info.trained_tokens == 0 ? "not told" : number(info.trained_tokens) + " tokens");
  print_line("fresh state", human_bytes(info.fresh_state_bytes));
  if (info.kv_bytes_per_token > 0) print_line("key-value", human_bytes(info.kv_bytes_per_token) + " per token");
  print_line("fingerprint", hex(info.fingerprint, 32));
  TextTable table({"layer", "mechanism", "mlp", "routing", "heads k/v", "key", "value", "window", "parts", "slots",
                   "parameters", "state"},
                  4);
  int index = 0;
  for (const cairn_layer_info& layer : layers_of(session)) {
    table.add({std::to_string(index++), layer.mechanism, layer.mlp, layer.routing, heads_of(layer), number(layer.key_dim),
               number(layer.value_dim), number(layer.window), number(layer.partitions), number(layer.slots),
               with_commas(layer.parameter_count), human_bytes(layer.state_bytes)});
  }
  std::printf("\n%s", table.text().c_str());
}

static void print_header(const std::string& path, const cairn_snapshot_info& info) {
  print_line("memory", path + ", " + human_bytes(info.total_bytes));
  print_line("format", std::to_string(info.format_major) + "." + std::to_string(info.format_minor) +
                           ", written by cairn " + info.library_version);
  print_line("model", std::string(info.model_name) + " " + hex(info.model_fingerprint, 8) + "…");
  print_line("position", with_commas(static_cast<uint64_t>(info.position)) + " tokens read");
  print_line("slots", with_commas(info.slots_written) + " written");
  print_line("holds", std::string(info.has_last_logits != 0 ? "last logits" : "no last logits") +
                          (info.has_rewind != 0 ? ", a rewind window" : "") +
                          (info.has_sparse_prefill != 0 ? ", sparsely read text" : ""));
}

static std::vector<uint64_t> bytes_by_layer(const std::string& path, const cairn_snapshot_info& info) {
  std::vector<uint64_t> bytes(static_cast<size_t>(info.layer_count) + 1);  // last: of the whole state
  for (int i = 0; i < info.section_count; ++i) {
    cairn_snapshot_section section = CAIRN_SNAPSHOT_SECTION_INIT;
    check(cairn_snapshot_get_section(path.c_str(), i, &section), "section");
    const bool of_layer = section.layer >= 0 && section.layer < info.layer_count;
    bytes[of_layer ? static_cast<size_t>(section.layer) : bytes.size() - 1] += section.size_bytes;
  }
  return bytes;
}

static std::string fixed(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

static void print_layers(const std::vector<uint64_t>& bytes) {
  TextTable table({"layer", "in file"});
  for (size_t i = 0; i + 1 < bytes.size(); ++i) table.add({std::to_string(i), human_bytes(bytes[i])});
  table.add({"other", human_bytes(bytes.back())});
  std::printf("\n%s", table.text().c_str());
}

static void print_layers_with_model(const Session& session, cairn_state* state, const std::vector<uint64_t>& bytes) {
  TextTable table({"layer", "mechanism", "in file", "max |S|", "norm", "non-finite", "slots written"}, 2);
  const std::vector<cairn_layer_info> layers = layers_of(session);
  for (size_t i = 0; i < layers.size(); ++i) {
    cairn_state_statistics statistics = CAIRN_STATE_STATISTICS_INIT;
    check(cairn_state_get_statistics(state, static_cast<int32_t>(i), &statistics), "statistics");
    table.add({std::to_string(i), layers[i].mechanism, human_bytes(bytes[i]), fixed(statistics.max_abs),
               fixed(statistics.norm), std::to_string(statistics.non_finite_count),
               statistics.slots_total == 0
                   ? ""
                   : with_commas(statistics.slots_written) + " of " + with_commas(statistics.slots_total)});
  }
  table.add({"other", "", human_bytes(bytes.back())});
  const cairn_state_info info = info_of(state);
  std::printf("\n%s\nin memory      %s, of that %s shared\n", table.text().c_str(), human_bytes(info.bytes_held).c_str(),
              human_bytes(info.bytes_shared).c_str());
}

/// Statistics and slots need the model that the memory belongs to; without it the header and the sizes must do.
static void inspect_memory(const InspectArguments& arguments, const cairn_snapshot_info& info) {
  print_header(arguments.path, info);
  const std::vector<uint64_t> bytes = bytes_by_layer(arguments.path, info);
  try {
    const Session session(arguments.model);
    const State state = session.restore(arguments.path);
    print_layers_with_model(session, state.get(), bytes);
    const std::vector<SlotTile> tiles = slot_tiles(session, state.get());
    if (!tiles.empty()) std::printf("\n%s", terminal_picture(tiles).c_str());
    if (!arguments.plot_path.empty()) write_picture(tiles, arguments.plot_path);
  } catch (const Failure& failure) {
    if (interrupted() || !arguments.plot_path.empty() || !arguments.model.model_path.empty()) throw;
    print_layers(bytes);
    std::printf("\nname its model with --model for statistics and slots (%s)\n", failure.what());
  }
}

void run_inspect(const InspectArguments& arguments) {
  if (!file_exists(arguments.path)) throw Failure("'" + arguments.path + "': no such file");
  cairn_snapshot_info info = CAIRN_SNAPSHOT_INFO_INIT;
  const cairn_status status = cairn_snapshot_inspect(arguments.path.c_str(), nullptr, &info);
  if (status == CAIRN_STATUS_OK) return inspect_memory(arguments, info);
  const std::string not_a_memory = cairn_last_error_message();
  if (status != CAIRN_STATUS_FORMAT && status != CAIRN_STATUS_IO) check(status, "cannot inspect");
  ModelArguments model = arguments.model;
  model.model_path = arguments.path;
  try {
    const Session session(model);
    if (!arguments.plot_path.empty()) throw Failure("--plot is of a memory, and this is a model", kExitUsage);
    inspect_model(session);
  } catch (const Failure& failure) {
    if (interrupted() || failure.exit_status() == kExitUsage) throw;
    throw Failure("'" + arguments.path + "' is neither a memory (" + not_a_memory + ") nor a model (" + failure.what() + ")");
  }
}

}  // namespace cairn_cli
