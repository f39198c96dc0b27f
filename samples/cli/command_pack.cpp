#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>

#include "commands.h"
#include "progress_bar.h"

namespace cairn_cli {
namespace {

cairn_weight_format weight_format(const std::string& name) {
  if (name == "f32") return CAIRN_WEIGHT_F32;
  if (name == "bf16") return CAIRN_WEIGHT_BF16;
  if (name == "int8") return CAIRN_WEIGHT_INT8;
  if (name == "int4") return CAIRN_WEIGHT_INT4;
  return CAIRN_WEIGHT_KEEP;
}

/// Rounding errors by layer, from the library's log: "layers.3.mixer.q.weight: bf16 to i8, relative error 0.00412, largest ...".
class RoundingErrors {
 public:
  RoundingErrors() { check(cairn_set_log_callback(take, this, CAIRN_LOG_INFO), "log"); }
  ~RoundingErrors() { (void)cairn_set_log_callback(nullptr, nullptr, CAIRN_LOG_ERROR); }
  RoundingErrors(const RoundingErrors&) = delete;
  RoundingErrors& operator=(const RoundingErrors&) = delete;

  void print() const {
    for (const auto& [layer, worst] : by_layer_) {
      if (layer >= 0) std::printf("layer %d", layer);
      else std::printf("embedding, head");
      std::printf(": relative error up to %.5f (%s), %d matrices\n", worst.error, worst.name.c_str(), worst.count);
    }
  }

 private:
  struct Worst {
    double error = -1;
    std::string name;
    int count = 0;
  };

  static void take(void* user, cairn_log_level, const char* component, const char* message) {
    char name[256] = "";
    double error = 0;
    if (std::string_view(component) != "pack") return;
    if (std::sscanf(message, "%255[^:]: %*s to %*[^,], relative error %lf", name, &error) != 2) return;
    int layer = -1;
    (void)std::sscanf(name, "layers.%d.", &layer);
    Worst& worst = static_cast<RoundingErrors*>(user)->by_layer_[layer];
    ++worst.count;
    if (error <= worst.error) return;
    worst.error = error;
    worst.name = name;
  }

  std::map<int, Worst> by_layer_;
};

/// Logits of every position of a fixed sequence of tokens.
std::vector<float> logits_of(const std::string& model_path, int token_count) {
  ModelArguments arguments;
  arguments.model_path = model_path;
  const Session session(arguments);
  const State state = session.new_state();
  const Stream stream = session.new_stream();
  std::vector<int32_t> tokens;
  for (int i = 0; i < token_count; ++i) tokens.push_back(static_cast<int32_t>((7919LL * i + 13) % session.info().vocab_size));
  const cairn_sequence sequence = {state.get(), tokens.data(), static_cast<int64_t>(tokens.size()), CAIRN_LOGITS_ALL, 0};
  cairn_batch batch = CAIRN_BATCH_INIT;
  batch.sequences = &sequence;
  batch.sequence_count = 1;
  batch.progress = cancel_when_interrupted;
  check(cairn_prefill(stream.get(), &batch), "cannot run the model");
  check(cairn_stream_synchronize(stream.get()), "cannot run the model");
  std::vector<float> all;
  for (int row = 0; row < token_count; ++row) {
    const float* logits = nullptr;
    size_t count = 0;
    check(cairn_stream_get_logits(stream.get(), row, &logits, &count), "no logits");
    all.insert(all.end(), logits, logits + count);
  }
  return all;
}

void compare(const std::string& original, const std::string& packed) {
  constexpr int kTokens = 64;
  const std::vector<float> a = logits_of(original, kTokens), b = logits_of(packed, kTokens);
  const std::size_t width = a.size() / kTokens;
  double difference = 0, size = 0;
  int same = 0;
  for (std::size_t row = 0; row < kTokens; ++row) {
    std::size_t best_a = 0, best_b = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const float x = a[row * width + i], y = b[row * width + i];
      difference += std::pow(static_cast<double>(x) - static_cast<double>(y), 2);
      size += static_cast<double>(x) * static_cast<double>(x);
      if (x > a[row * width + best_a]) best_a = i;
      if (y > b[row * width + best_b]) best_b = i;
    }
    same += best_a == best_b ? 1 : 0;
  }
  std::printf("end to end: relative error of the logits %.5f, the same best token at %d of %d positions\n",
              size > 0 ? std::sqrt(difference / size) : 0, same, kTokens);
}

}  // namespace

void run_pack(const PackArguments& arguments) {
  if (arguments.group_size != 0 && arguments.weights != "int4") {
    throw Failure("--group-size is of --weights int4 alone", kExitUsage);
  }
  cairn_pack_options options = CAIRN_PACK_OPTIONS_INIT;
  options.format = weight_format(arguments.weights);
  options.group_size = arguments.group_size;
  RoundingErrors errors;
  {
    ProgressBar bar("packing", "bytes");
    options.progress = ProgressBar::callback;
    options.progress_user = &bar;
    check(cairn_pack(arguments.folder.c_str(), arguments.output.c_str(), &options), "cannot pack");
  }
  errors.print();
  if (arguments.compares) compare(arguments.folder, arguments.output);
  std::ifstream file(arguments.output, std::ios::binary | std::ios::ate);
  std::printf("%s: %s\n", arguments.output.c_str(), human_bytes(static_cast<uint64_t>(file.tellg())).c_str());
}

}  // namespace cairn_cli
