// Talking with a model: its chat template around the turns, and commands that save, fork and rewind the memory.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "chat_template.h"
#include "commands.h"
#include "completion.h"
#include "progress_bar.h"

namespace cairn_cli {
namespace {

constexpr std::size_t kMaxTurnsBack = 32;

const char* const kHelp =
    "/save FILE   write the memory and the talk so far       /load FILE   go on from such a file\n"
    "/fork        go on in a second memory, equal to this    /switch N    go to memory N\n"
    "/rewind N    forget the last N turns                    /quit        end\n";

/// One line of thought: a memory, what was said, and the memories before the newest turns.
struct Branch {
  State state;
  std::vector<ChatMessage> messages;
  std::vector<State> before;  ///< before the newest turns, oldest first
};

std::string template_of(const Session& session) {
  size_t size = 0;
  const cairn_status status = cairn_model_get_chat_template(session.model(), nullptr, &size);
  if (status != CAIRN_STATUS_OK && status != CAIRN_STATUS_BUFFER_TOO_SMALL) check(status, "chat template");
  std::string text(size, '\0');
  if (size > 0) check(cairn_model_get_chat_template(session.model(), text.data(), &size), "chat template");
  return text;
}

class Chat {
 public:
  Chat(const Session& session, const ChatArguments& arguments)
      : session_(session), stream_(session.new_stream()), template_(template_of(session)), arguments_(arguments) {
    branches_.push_back({session.new_state(), {}, {}});
    if (!arguments.system.empty()) branch().messages.push_back({"system", arguments.system});
    if (!arguments.state_path.empty()) load(arguments.state_path);
  }

  void say(const std::string& text);
  /// False: the talk is over.
  bool command(const std::string& line);

 private:
  Branch& branch() { return branches_[current_]; }
  void save(const std::string& path);
  void load(const std::string& path);
  void fork();
  void switch_to(std::size_t number);
  void rewind(std::size_t turns);
  std::string prompt_for(const std::string& text);

  const Session& session_;
  Stream stream_;
  ChatTemplate template_;
  ChatArguments arguments_;
  std::vector<Branch> branches_;
  std::size_t current_ = 0;
};

/// What to read for a turn. Models without a template get questions as `cairn ask` writes them.
std::string Chat::prompt_for(const std::string& text) {
  branch().messages.push_back({"user", text});
  if (template_.is_empty()) return "\nQ: " + text + "\nA: ";
  return template_.next_text(branch().messages);
}

void Chat::say(const std::string& text) {
  Branch& here = branch();
  State before = session_.fork(here.state.get());
  const std::size_t message_count = here.messages.size();
  std::string said;
  try {
    CompletionOptions options;
    options.max_tokens = arguments_.max_tokens;
    options.sampler.temperature = arguments_.temperature;
    options.sampler.top_p = arguments_.top_p;
    options.sampler.seed = arguments_.seed;
    const bool ends_at_newline = template_.is_empty();
    complete(session_, stream_.get(), here.state.get(), prompt_for(text), options, [&](std::string_view part) {
      const std::size_t end = ends_at_newline ? part.find('\n') : std::string_view::npos;
      part = part.substr(0, end);
      std::fwrite(part.data(), 1, part.size(), stdout);
      std::fflush(stdout);
      said += part;
      return end == std::string_view::npos;
    });
  } catch (const Failure&) {
    here.messages.resize(message_count);
    here.state = std::move(before);
    throw;
  }
  std::printf("\n");
  here.messages.push_back({"assistant", said});
  here.before.push_back(std::move(before));
  if (here.before.size() > kMaxTurnsBack) here.before.erase(here.before.begin());
}

/// The talk lies beside the memory: the template needs it for the next turn.
void Chat::save(const std::string& path) {
  check(cairn_state_save(branch().state.get(), path.c_str(), nullptr), "cannot save");
  nlohmann::json talk = nlohmann::json::array();
  for (const ChatMessage& message : branch().messages) talk.push_back({{"role", message.role}, {"content", message.content}});
  write_text(path + ".talk.json", talk.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  std::printf("saved %s\n", path.c_str());
}

void Chat::load(const std::string& path) {
  State state = session_.restore(path);
  std::vector<ChatMessage> messages;
  if (file_exists(path + ".talk.json")) {
    const nlohmann::json talk = nlohmann::json::parse(read_text(path + ".talk.json"), nullptr, false);
    if (!talk.is_array()) throw Failure("'" + path + ".talk.json' is no talk");
    for (const nlohmann::json& message : talk) {
      if (!message.is_object() || !message.value("role", nlohmann::json()).is_string() || !message.value("content", nlohmann::json()).is_string()) {
        throw Failure("'" + path + ".talk.json' is no talk");
      }
      messages.push_back({message["role"], message["content"]});
    }
  }
  branch() = {std::move(state), std::move(messages), {}};
  std::printf("loaded %s: %lld tokens\n", path.c_str(), static_cast<long long>(info_of(branch().state.get()).position));
}

void Chat::fork() {
  branches_.push_back({session_.fork(branch().state.get()), branch().messages, {}});
  current_ = branches_.size() - 1;
  std::printf("memory %zu of %zu\n", current_ + 1, branches_.size());
}

void Chat::switch_to(std::size_t number) {
  if (number < 1 || number > branches_.size()) throw Failure("there are memories 1 to " + std::to_string(branches_.size()));
  current_ = number - 1;
  std::printf("memory %zu of %zu\n", number, branches_.size());
}

void Chat::rewind(std::size_t turns) {
  Branch& here = branch();
  if (turns < 1 || turns > here.before.size()) throw Failure("can go back 1 to " + std::to_string(here.before.size()) + " turns");
  const std::size_t kept = here.before.size() - turns;
  here.state = std::move(here.before[kept]);
  here.before.resize(kept);
  here.messages.resize(here.messages.size() - 2 * turns);
  std::printf("back by %zu\n", turns);
}

bool Chat::command(const std::string& line) {
  std::istringstream words(line);
  std::string name, argument;
  words >> name;
  std::getline(words >> std::ws, argument);
  const bool has_number = !argument.empty() && argument.size() < 9 && argument.find_first_not_of("0123456789") == std::string::npos;
  const std::size_t number = has_number ? std::stoul(argument) : 0;
  if (name == "/quit") return false;
  if (name == "/save" && !argument.empty()) save(argument);
  else if (name == "/load" && !argument.empty()) load(argument);
  else if (name == "/fork" && argument.empty()) fork();
  else if (name == "/switch" && has_number) switch_to(number);
  else if (name == "/rewind" && (has_number || argument.empty())) rewind(has_number ? number : 1);
  else std::printf("%s", kHelp);
  return true;
}

}  // namespace

void run_chat(const ChatArguments& arguments) {
  const Session session(arguments.model);
  Chat chat(session, arguments);
  std::string line;
  while (!interrupted() && (std::printf("> "), std::fflush(stdout), std::getline(std::cin, line))) {
    if (line.empty()) continue;
    try {
      if (line[0] != '/') chat.say(line);
      else if (!chat.command(line)) return;
    } catch (const Failure& failure) {
      if (interrupted()) throw;
      std::fprintf(stderr, "cairn: %s\n", failure.what());
    }
  }
  const int error_number = std::ferror(stdin) != 0 ? errno : 0;
  std::printf("\n");
  if (interrupted()) throw Failure("interrupted", kExitInterrupted);
  if (error_number != 0) throw Failure(std::string("cannot read standard input: ") + std::strerror(error_number));
}

}  // namespace cairn_cli
