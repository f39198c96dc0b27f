// What every command shares: failures, handles that release themselves, and a model opened on a device.
#pragma once

#include <cairn/cairn.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace cairn_cli {

inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

/// Ends a command: the message for the user and the exit status.
class Failure : public std::runtime_error {
 public:
  explicit Failure(const std::string& message, int exit_status = kExitFailed)
      : std::runtime_error(message), exit_status_(exit_status) {}
  int exit_status() const { return exit_status_; }

 private:
  int exit_status_;
};

/// Throws a Failure with the library's message; cancelled calls end as an interruption.
void check(cairn_status status, std::string_view what);

template <typename T, void (*Release)(T*)>
struct Releaser {
  void operator()(T* handle) const { Release(handle); }
};
using Device = std::unique_ptr<cairn_device, Releaser<cairn_device, cairn_device_release>>;
using Model = std::unique_ptr<cairn_model, Releaser<cairn_model, cairn_model_release>>;
using State = std::unique_ptr<cairn_state, Releaser<cairn_state, cairn_state_release>>;
using Stream = std::unique_ptr<cairn_stream, Releaser<cairn_stream, cairn_stream_release>>;
using TextDecoder = std::unique_ptr<cairn_text_decoder, Releaser<cairn_text_decoder, cairn_text_decoder_release>>;

/// Throws when something that was printed did not arrive.
void check_output();

/// Options that every command with a model has.
struct ModelArguments {
  std::string model_path;  ///< "": the sample model
  std::string backend = "auto";
  int device_index = 0;
  int threads = 0;  ///< 0: all cores
  std::string precision = "default", sdm_rows = "f32";
};

/// A loaded model, its device and one stream.
class Session {
 public:
  explicit Session(const ModelArguments& arguments);

  cairn_model* model() const { return model_.get(); }
  const cairn_model_info& info() const { return info_; }
  const cairn_device_info& device_info() const { return device_info_; }
  const std::string& model_path() const { return model_path_; }

  State new_state() const;
  State restore(const std::string& path) const;
  State fork(cairn_state* state) const;
  Stream new_stream() const;

  std::vector<int32_t> tokenize(std::string_view text) const;
  /// As tokenize; a state that has read nothing gets the model's BOS first.
  std::vector<int32_t> tokenize_for(cairn_state* state, std::string_view text) const;
  bool is_stop(int32_t token) const;

 private:
  std::string model_path_;
  Device device_;
  Model model_;
  cairn_model_info info_ = CAIRN_MODEL_INFO_INIT;
  cairn_device_info device_info_ = CAIRN_DEVICE_INFO_INIT;
};

/// Where the sample model is looked for: beside the program, then in the installed or built share folder.
std::vector<std::string> sample_model_places();
/// The first of them that exists, or a Failure that lists them.
std::string sample_model_path();

cairn_state_info info_of(cairn_state* state);
/// Reads `tokens` into `state`, dense, and waits; Ctrl-C cancels. Logits of the last token.
void read_tokens(cairn_stream* stream, cairn_state* state, const std::vector<int32_t>& tokens);

std::string read_text(const std::string& path);  ///< "-": standard input
void write_text(const std::string& path, const std::string& text);
bool file_exists(const std::string& path);
std::string human_bytes(uint64_t bytes);    ///< "3.4 MB"
std::string with_commas(uint64_t number);   ///< "12,345"

}  // namespace cairn_cli
