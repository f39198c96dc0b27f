#include <cstdio>

#include "commands.h"
#include "completion.h"
#include "progress_bar.h"

namespace cairn_cli {

/// The greedy answer, up to its newline.
static std::string answer(const Session& session, cairn_stream* stream, cairn_state* state, const std::string& question,
                          int max_tokens) {
  CompletionOptions options;
  options.max_tokens = max_tokens;
  std::string said;
  complete(session, stream, state, "\nQ: " + question + "\nA: ", options, [&](std::string_view text) {
    const size_t end = text.find('\n');
    said += text.substr(0, end);
    return end == std::string_view::npos;
  });
  return said;
}

void run_ask(const AskArguments& arguments) {
  const Session session(arguments.model);
  const State state = session.restore(arguments.state_path);
  const Stream stream = session.new_stream();
  for (const std::string& question : arguments.questions) {
    // Without --save every question is asked of the memory as it was saved.
    const State fork = arguments.save ? State() : session.fork(state.get());
    std::printf("%s\n",
                answer(session, stream.get(), fork ? fork.get() : state.get(), question, arguments.max_tokens).c_str());
    std::fflush(stdout);
    if (interrupted()) throw Failure("interrupted: nothing was saved", kExitInterrupted);
  }
  check_output();
  if (arguments.save) check(cairn_state_save(state.get(), arguments.state_path.c_str(), nullptr), "cannot save");
}

}  // namespace cairn_cli
