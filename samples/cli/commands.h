// The commands of the program: what each is told, and the function that does it. Failures are thrown (cli_session.h).
#pragma once

#include <string>
#include <vector>

#include "cli_session.h"

namespace cairn_cli {

struct PackArguments {
  std::string folder, output;
  std::string weights = "keep";
  int group_size = 0;
  bool compares = false;  ///< run folder and file, and tell how far apart they are
};
void run_pack(const PackArguments& arguments);

struct RememberArguments {
  ModelArguments model;
  std::string state_path, text_path;
  std::string sparse_policy;  ///< "": dense
  uint64_t seed = 0;
  bool raw = false;  ///< the bytes as they are: no newline between what was read before and the text
};
void run_remember(const RememberArguments& arguments);

struct AskArguments {
  ModelArguments model;
  std::string state_path;
  std::vector<std::string> questions;
  int max_tokens = 200;
  bool save = false;
};
void run_ask(const AskArguments& arguments);

struct RunArguments {
  ModelArguments model;
  std::string prompt;      ///< "-": standard input
  std::string state_path;  ///< "": a new state
  bool save = false;
  int max_tokens = 256;
  std::string stop_text;   ///< end when the output holds it; "": no such end
  float temperature = 0, top_p = 0, min_p = 0, repetition_penalty = 0;
  int top_k = 0;
  int recent_tokens = 64;
  uint64_t seed = 0;
};
void run_run(const RunArguments& arguments);

struct ChatArguments {
  ModelArguments model;
  std::string system;      ///< the system message; "": none
  std::string state_path;  ///< a saved talk to go on from; "": a new one
  int max_tokens = 1024;
  float temperature = 0, top_p = 0;
  uint64_t seed = 0;
};
void run_chat(const ChatArguments& arguments);

struct InspectArguments {
  ModelArguments model;
  std::string path;
  std::string plot_path;  ///< "": none; *.png or *.svg
};
void run_inspect(const InspectArguments& arguments);

struct DoctorArguments {
  ModelArguments model;
};
/// @return false when no device can be opened or the model does not run
bool run_doctor(const DoctorArguments& arguments);

struct BenchArguments {
  ModelArguments model;
  std::vector<int> batches = {1, 8, 64};
  std::vector<int> threads = {1, 2};
  int prefill_tokens = 1024;
  int decode_tokens = 64;
  int repeats = 3;
  bool json = false;
};
void run_bench(const BenchArguments& arguments);

}  // namespace cairn_cli
