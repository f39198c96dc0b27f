#include <cstdio>

#include "commands.h"
#include "completion.h"
#include "progress_bar.h"

namespace cairn_cli {

static CompletionOptions completion_options(const RunArguments& arguments) {
  CompletionOptions options;
  options.max_tokens = arguments.max_tokens;
  options.recent_tokens = arguments.recent_tokens;
  options.sampler.temperature = arguments.temperature;
  options.sampler.top_k = arguments.top_k;
  options.sampler.top_p = arguments.top_p;
  options.sampler.min_p = arguments.min_p;
  options.sampler.repetition_penalty = arguments.repetition_penalty;
  options.sampler.seed = arguments.seed;
  return options;
}

void run_run(const RunArguments& arguments) {
  if (arguments.save && arguments.state_path.empty()) throw Failure("--save needs --state", kExitUsage);
  const std::string prompt = arguments.prompt == "-" ? read_text("-") : arguments.prompt;
  const Session session(arguments.model);
  const bool is_first = arguments.state_path.empty() || (arguments.save && !file_exists(arguments.state_path));
  const State state = is_first ? session.new_state() : session.restore(arguments.state_path);
  const Stream stream = session.new_stream();
  std::string said;
  complete(session, stream.get(), state.get(), prompt, completion_options(arguments), [&](std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    if (arguments.stop_text.empty()) return true;
    said += text;
    return said.find(arguments.stop_text) == std::string::npos;
  });
  std::printf("\n");
  if (interrupted()) throw Failure("interrupted: nothing was saved", kExitInterrupted);
  check_output();
  if (arguments.save) check(cairn_state_save(state.get(), arguments.state_path.c_str(), nullptr), "cannot save");
}

}  // namespace cairn_cli
