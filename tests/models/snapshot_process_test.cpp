// A state saved here goes on in another process, bit for bit. Usage: snapshot_process_test MODEL FOLDER
// The program runs itself with --child: that process restores what this one saved and goes on.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "agent.h"

namespace cairn_test {
namespace {

constexpr int kSteps = 256;
constexpr int kSparse = -1;  ///< in place of a length: 2,048 tokens read sparsely
constexpr int kLengths[] = {0,   1,   2,   3,   4,   5,    63,   64,   65,     127,   128,
                            129, 255, 256, 257, 1023, 1024, 1025, kSparse};

/// What was said, and the bits of every logit on the way.
struct Continuation {
  std::vector<int32_t> tokens;
  uint64_t digest = 0xcbf29ce484222325;  ///< FNV-1a

  void add(std::span<const float> logits) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(logits.data());
    for (size_t i = 0; i < logits.size_bytes(); ++i) digest = (digest ^ bytes[i]) * 0x100000001b3;
  }
};

/// A state that has read nothing has no logits: it begins with BOS.
Continuation go_on(const Agent& agent, cairn_state* state) {
  Continuation said;
  for (int step = 0; step < kSteps; ++step) {
    int32_t token = agent.info().bos_token;
    if (info_of(state).has_last_logits != 0) {
      const std::vector<float> logits = last_logits(agent, state);
      said.add(logits);
      token = greedy(logits);
    }
    said.tokens.push_back(token);
    agent.decode(state, token);
  }
  return said;
}

/// Text that exercises all layers: notes and filler.
std::vector<int32_t> text_tokens(const Agent& agent, size_t count) {
  std::string text;
  for (int line = 0; text.size() < count; ++line) {
    text += "Note: The code of Marlen Tovik is " + std::to_string(1000 + line * 37 % 9000) + ".\n";
    text += "The last one to leave reads this page again and closes door number " + std::to_string(line) + ".\n";
  }
  std::vector<int32_t> tokens = agent.tokens_of(text);
  tokens.resize(count);
  return tokens;
}

State read_case(const Agent& agent, int length) {
  State state = agent.new_state();
  if (length == kSparse) {
    cairn_sparse_options sparse = CAIRN_SPARSE_OPTIONS_INIT;
    agent.read(state.get(), text_tokens(agent, 2048), CAIRN_LOGITS_LAST, &sparse);
  } else if (length > 0) {
    agent.read(state.get(), text_tokens(agent, static_cast<size_t>(length)));
  }
  return state;
}

std::string state_path(const std::string& folder, int length) {
  return folder + "/" + (length == kSparse ? "sparse" : std::to_string(length)) + ".state";
}

/// In the other process: restores every case, goes on, writes what was said.
int run_child(const std::string& model, const std::string& folder) {
  const Agent agent(model, "cpu", 1);
  for (const int length : kLengths) {
    const std::string path = state_path(folder, length);
    const State state = agent.new_state();
    check(cairn_state_restore(state.get(), path.c_str(), nullptr));
    const Continuation said = go_on(agent, state.get());
    std::ofstream out(path + ".said", std::ios::binary);
    out.write(reinterpret_cast<const char*>(said.tokens.data()), kSteps * sizeof(int32_t));
    out.write(reinterpret_cast<const char*>(&said.digest), sizeof said.digest);
  }
  return 0;
}

bool run_other_process(const char* program, const std::string& model, const std::string& folder) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(program, program, "--child", model.c_str(), folder.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool same_as_said(const Continuation& here, const std::string& path) {
  std::vector<int32_t> tokens(kSteps);
  uint64_t digest = 0;
  std::ifstream in(path, std::ios::binary);
  in.read(reinterpret_cast<char*>(tokens.data()), kSteps * sizeof(int32_t));
  in.read(reinterpret_cast<char*>(&digest), sizeof digest);
  return in && tokens == here.tokens && digest == here.digest;
}

int run_parent(const char* program, const std::string& model, const std::string& folder) {
  const Agent agent(model, "cpu", 2);  // another thread count than the child: that must not change bits
  std::vector<State> states;
  for (const int length : kLengths) {
    states.push_back(read_case(agent, length));
    check(cairn_state_save(states.back().get(), state_path(folder, length).c_str(), nullptr));
  }
  if (!run_other_process(program, model, folder)) {
    std::fprintf(stderr, "the other process failed\n");
    return 1;
  }
  int failures = 0;
  for (size_t i = 0; i < states.size(); ++i) {
    const std::string path = state_path(folder, kLengths[i]);
    const bool same = same_as_said(go_on(agent, states[i].get()), path + ".said");
    failures += !same;
    std::printf("%-7s %s: %d greedy tokens and their logits %s\n", same ? "ok" : "FAILED",
                kLengths[i] == kSparse ? "2048 read sparsely" : std::to_string(kLengths[i]).c_str(), kSteps,
                same ? "are bit-equal in a new process" : "differ in a new process");
    std::remove(path.c_str());
    std::remove((path + ".said").c_str());
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace cairn_test

int main(int argc, char** argv) {
  try {
    if (argc == 4 && std::strcmp(argv[1], "--child") == 0) return cairn_test::run_child(argv[2], argv[3]);
    if (argc != 3) throw std::runtime_error("usage: snapshot_process_test MODEL FOLDER");
    return cairn_test::run_parent(argv[0], argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "snapshot_process_test: %s\n", error.what());
    return 1;
  }
}
