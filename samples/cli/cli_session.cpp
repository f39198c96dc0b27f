#include "cli_session.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "progress_bar.h"

namespace cairn_cli {

void check(cairn_status status, std::string_view what) {
  if (status == CAIRN_STATUS_OK) return;
  if (status == CAIRN_STATUS_CANCELLED) throw Failure("interrupted: nothing was saved", kExitInterrupted);
  std::string message(what);
  const char* details = cairn_last_error_message();
  message += ": ";
  message += details[0] != '\0' ? details : cairn_status_name(status);
  throw Failure(message);
}

void check_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw Failure("cannot write the output");
}

static cairn_precision precision_of(const std::string& name) {
  if (name == "f32") return CAIRN_PRECISION_F32;
  if (name == "bf16") return CAIRN_PRECISION_BF16;
  return CAIRN_PRECISION_DEFAULT;
}

Session::Session(const ModelArguments& arguments)
    : model_path_(arguments.model_path.empty() ? sample_model_path() : arguments.model_path) {
  cairn_device_options device_options = CAIRN_DEVICE_OPTIONS_INIT;
  device_options.backend = arguments.backend.c_str();
  device_options.index = arguments.device_index;
  device_options.thread_count = arguments.threads;
  cairn_device* device = nullptr;
  check(cairn_device_open(&device_options, &device), "cannot open a device");
  device_.reset(device);
  check(cairn_device_get_info(device, &device_info_), "device");

  cairn_model_options model_options = CAIRN_MODEL_OPTIONS_INIT;
  model_options.precision = precision_of(arguments.precision);
  model_options.sdm_rows = precision_of(arguments.sdm_rows);
  model_options.progress = cancel_when_interrupted;
  cairn_model* model = nullptr;
  check(cairn_model_load(device, model_path_.c_str(), &model_options, &model), "cannot load the model");
  model_.reset(model);
  check(cairn_model_get_info(model, &info_), "model");
}

State Session::new_state() const {
  cairn_state* state = nullptr;
  check(cairn_state_create(model(), nullptr, &state), "cannot create a state");
  return State(state);
}

State Session::restore(const std::string& path) const {
  State state = new_state();
  cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
  options.progress = cancel_when_interrupted;
  check(cairn_state_restore(state.get(), path.c_str(), &options), "cannot restore the state");
  return state;
}

State Session::fork(cairn_state* state) const {
  cairn_state* fork = nullptr;
  check(cairn_state_fork(state, &fork), "cannot fork the state");
  return State(fork);
}

Stream Session::new_stream() const {
  cairn_stream* stream = nullptr;
  check(cairn_stream_create(model(), nullptr, &stream), "cannot create a stream");
  return Stream(stream);
}

std::vector<int32_t> Session::tokenize(std::string_view text) const {
  size_t count = 0;
  const cairn_status sized = cairn_model_tokenize(model(), text.data(), text.size(), nullptr, &count);
  if (sized != CAIRN_STATUS_OK && sized != CAIRN_STATUS_BUFFER_TOO_SMALL) check(sized, "cannot tokenize");
  std::vector<int32_t> tokens(count);
  if (count > 0) check(cairn_model_tokenize(model(), text.data(), text.size(), tokens.data(), &count), "cannot tokenize");
  return tokens;
}

std::vector<int32_t> Session::tokenize_for(cairn_state* state, std::string_view text) const {
  std::vector<int32_t> tokens = tokenize(text);
  if (info_.add_bos != 0 && info_of(state).position == 0) tokens.insert(tokens.begin(), info_.bos_token);
  return tokens;
}

bool Session::is_stop(int32_t token) const {
  int32_t stop = 0;
  check(cairn_model_is_stop_token(model(), token, &stop), "stop token");
  return stop != 0;
}

std::vector<std::string> sample_model_places() {
  char buffer[4096];
  const ssize_t length = readlink("/proc/self/exe", buffer, sizeof buffer);
  const std::string program(buffer, length > 0 ? static_cast<size_t>(length) : 0);
  const std::string folder = program.substr(0, program.rfind('/'));
  return {folder + "/wayfarer.cairn", folder + "/../share/cairn/wayfarer.cairn"};
}

std::string sample_model_path() {
  std::string tried;
  for (const std::string& place : sample_model_places()) {
    if (file_exists(place)) return place;
    tried += "\n  " + place;
  }
  throw Failure("no model: name one with --model; the sample model was looked for at" + tried);
}

cairn_state_info info_of(cairn_state* state) {
  cairn_state_info info = CAIRN_STATE_INFO_INIT;
  check(cairn_state_get_info(state, &info), "state");
  return info;
}

void read_tokens(cairn_stream* stream, cairn_state* state, const std::vector<int32_t>& tokens) {
  const cairn_sequence sequence = {state, tokens.data(), static_cast<int64_t>(tokens.size()), CAIRN_LOGITS_LAST, 0};
  cairn_batch batch = CAIRN_BATCH_INIT;
  batch.sequences = &sequence;
  batch.sequence_count = 1;
  batch.progress = cancel_when_interrupted;
  check(cairn_prefill(stream, &batch), "cannot read the text");
  check(cairn_stream_synchronize(stream), "cannot read the text");
}

std::string read_text(const std::string& path) {
  const bool is_input = path == "-";
  std::FILE* const file = is_input ? stdin : std::fopen(path.c_str(), "rb");
  std::string text;
  char piece[65536];
  for (size_t count = 1; file != nullptr && count > 0 && !interrupted();) {
    count = std::fread(piece, 1, sizeof piece, file);
    text.append(piece, count);
  }
  const int error_number = file == nullptr || std::ferror(file) != 0 ? errno : 0;
  if (file != nullptr && !is_input) std::fclose(file);
  if (interrupted()) throw Failure("interrupted: nothing was saved", kExitInterrupted);
  if (error_number == 0) return text;
  throw Failure("cannot read " + (is_input ? "standard input" : "'" + path + "'") + ": " + std::strerror(error_number));
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  std::error_code ignored;  // closed to others before the words are in it
  std::filesystem::permissions(path, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write, ignored);
  file << text;
  file.close();
  if (!file) throw Failure("cannot write '" + path + "'");
}

bool file_exists(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0;
}

std::string human_bytes(uint64_t bytes) {
  static const char* const kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1000 && unit < 4) {
    value /= 1000;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string with_commas(uint64_t number) {
  std::string digits = std::to_string(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
  return digits;
}

}  // namespace cairn_cli
