#include <cstdio>

#include "commands.h"
#include "progress_bar.h"

namespace cairn_cli {

// A memory never ends with a newline and every addition begins with one: texts and questions stay on lines of their own.
static std::string on_its_own_lines(std::string text, bool is_first) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return is_first || text.empty() ? text : "\n" + text;
}

static cairn_sparse_policy policy_of(const std::string& name) {
  if (name == "all") return CAIRN_SPARSE_ALL;
  if (name == "random") return CAIRN_SPARSE_RANDOM;
  if (name == "fixed") return CAIRN_SPARSE_FIXED;
  return CAIRN_SPARSE_ADAPTIVE;
}

void run_remember(const RememberArguments& arguments) {
  std::string text = read_text(arguments.text_path);
  const Session session(arguments.model);
  const bool is_first = !file_exists(arguments.state_path);
  const State state = is_first ? session.new_state() : session.restore(arguments.state_path);
  if (!arguments.raw) text = on_its_own_lines(std::move(text), is_first);
  const std::vector<int32_t> tokens = session.tokenize_for(state.get(), text);
  const Stream stream = session.new_stream();

  const cairn_sequence sequence = {state.get(), tokens.data(), static_cast<int64_t>(tokens.size()), CAIRN_LOGITS_LAST, 0};
  cairn_sparse_options sparse = CAIRN_SPARSE_OPTIONS_INIT;
  sparse.policy = policy_of(arguments.sparse_policy);
  sparse.seed = arguments.seed;
  cairn_batch batch = CAIRN_BATCH_INIT;
  batch.sequences = &sequence;
  batch.sequence_count = 1;
  batch.mode = arguments.sparse_policy.empty() ? CAIRN_PREFILL_DENSE : CAIRN_PREFILL_SPARSE;
  batch.sparse = &sparse;
  batch.progress = ProgressBar::callback;
  double seconds = 0;
  {
    ProgressBar bar("reading", "tokens");
    batch.progress_user = &bar;
    check(cairn_prefill(stream.get(), &batch), "cannot read the text");
    check(cairn_stream_synchronize(stream.get()), "cannot read the text");
    seconds = bar.elapsed_seconds();
  }
  check(cairn_state_save(state.get(), arguments.state_path.c_str(), nullptr), "cannot save the memory");

  const cairn_state_info info = info_of(state.get());
  cairn_snapshot_info saved = CAIRN_SNAPSHOT_INFO_INIT;
  check(cairn_snapshot_inspect(arguments.state_path.c_str(), nullptr, &saved), "cannot verify the memory");
  std::printf("read %s tokens in %.2f s (%s tokens/s, %s)\n", with_commas(tokens.size()).c_str(), seconds,
              with_commas(static_cast<uint64_t>(static_cast<double>(tokens.size()) / (seconds + 1e-9))).c_str(),
              session.device_info().backend);
  std::printf("%s: %s, position %s\n", arguments.state_path.c_str(), human_bytes(saved.total_bytes).c_str(),
              with_commas(static_cast<uint64_t>(info.position)).c_str());
}

}  // namespace cairn_cli
