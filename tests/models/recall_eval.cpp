// Recall on a JSONL of prompts {id, prompt, answer, kind}: greedy exact match of the whole answer and its newline, nats per
// answer byte under teacher forcing, and agreement with a results.json of the model's card.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "agent.h"

namespace cairn_test {
namespace {

struct Arguments {
  std::string model, prompts, results, backend = "cpu", sparse, output;
  int threads = 0, limit = 0, max_bytes = 0, tolerance = 2;
  uint64_t seed = 0;
};

struct Prompt {
  std::string id, text, answer, kind;
};

struct Tally {
  int asked = 0, exact = 0, expected = 0, agreeing = 0;
  double nats = 0;
  size_t answer_bytes = 0;
};

std::vector<Prompt> read_prompts(const Arguments& arguments) {
  std::ifstream file(arguments.prompts);
  if (!file) throw std::runtime_error("cannot read " + arguments.prompts);
  std::vector<Prompt> prompts;
  for (std::string line; std::getline(file, line);) {
    if (line.empty()) continue;
    const auto json = nlohmann::json::parse(line);
    if (json.at("kind") == "text") continue;  // a continuation: it has no answer
    Prompt prompt = {json.at("id"), json.at("prompt"), json.at("answer"), json.at("kind")};
    if (arguments.max_bytes > 0 && prompt.text.size() > static_cast<size_t>(arguments.max_bytes)) continue;
    prompts.push_back(std::move(prompt));
    if (arguments.limit > 0 && prompts.size() == static_cast<size_t>(arguments.limit)) break;
  }
  return prompts;
}

/// What the card says of each prompt; empty without a results file.
std::map<std::string, bool> read_results(const std::string& path) {
  std::map<std::string, bool> exact;
  if (path.empty()) return exact;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  const auto results = nlohmann::json::parse(file);
  for (const auto& score : results.at("prompts.jsonl:scores")) {
    exact[score.at("id")] = score.at("exact").get<bool>();
  }
  return exact;
}

cairn_sparse_options sparse_options(const Arguments& arguments) {
  cairn_sparse_options options = CAIRN_SPARSE_OPTIONS_INIT;
  const std::map<std::string, cairn_sparse_policy> policies = {{"adaptive", CAIRN_SPARSE_ADAPTIVE},
                                                              {"all", CAIRN_SPARSE_ALL},
                                                              {"random", CAIRN_SPARSE_RANDOM},
                                                              {"fixed", CAIRN_SPARSE_FIXED}};
  if (!arguments.sparse.empty()) options.policy = policies.at(arguments.sparse);
  options.seed = arguments.seed;
  return options;
}

std::string greedy_line(const Agent& agent, cairn_state* state, size_t max_bytes) {
  std::string said;
  while (said.size() < max_bytes) {
    const int32_t token = greedy(last_logits(agent, state));
    if (token == '\n') return said;
    said.push_back(static_cast<char>(token));
    agent.decode(state, token);
  }
  return said + " (no newline)";
}

double nats_of(const Agent& agent, cairn_state* state, const std::string& answer) {
  const std::vector<int32_t> tokens = agent.tokens_of(answer + "\n");
  double nats = surprise(last_logits(agent, state), tokens[1]);
  const std::span<const int32_t> read(tokens.data() + 1, tokens.size() - 2);
  agent.read(state, read, CAIRN_LOGITS_ALL);
  for (size_t row = 0; row < read.size(); ++row) {
    nats += surprise(agent.logits(static_cast<int64_t>(row)), tokens[row + 2]);
  }
  return nats;
}

void print_row(const char* name, const Tally& tally) {
  std::printf("%-12s %4d prompts  exact %4d (%5.1f %%)  nats per answer byte %.4f", name, tally.asked, tally.exact,
              100.0 * tally.exact / tally.asked, tally.nats / static_cast<double>(tally.answer_bytes));
  if (tally.expected > 0) std::printf("  card %4d, same outcome %4d", tally.expected, tally.agreeing);
  std::printf("\n");
}

void add(Tally& tally, const Prompt& prompt, bool exact, double nats, const std::map<std::string, bool>& card) {
  ++tally.asked;
  tally.exact += exact;
  tally.nats += nats;
  tally.answer_bytes += prompt.answer.size() + 1;
  const auto known = card.find(prompt.id);
  if (known == card.end()) return;
  tally.expected += known->second;
  tally.agreeing += known->second == exact;
}

int evaluate(const Arguments& arguments) {
  const Agent agent(arguments.model, arguments.backend, arguments.threads);
  const std::map<std::string, bool> card = read_results(arguments.results);
  const cairn_sparse_options sparse = sparse_options(arguments);
  std::map<std::string, Tally> by_kind;
  Tally all;
  nlohmann::json said = nlohmann::json::array();
  for (const Prompt& prompt : read_prompts(arguments)) {
    const State state = agent.new_state();
    agent.read(state.get(), agent.tokens_of(prompt.text), CAIRN_LOGITS_LAST,
               arguments.sparse.empty() ? nullptr : &sparse);
    const State forced = Agent::fork(state.get());
    const std::string answer = greedy_line(agent, state.get(), prompt.answer.size() + 24);
    const double nats = nats_of(agent, forced.get(), prompt.answer);
    add(all, prompt, answer == prompt.answer, nats, card);
    add(by_kind[prompt.kind], prompt, answer == prompt.answer, nats, card);
    said.push_back({{"id", prompt.id}, {"said", answer}, {"exact", answer == prompt.answer}, {"nats", nats}});
    if (isatty(STDERR_FILENO)) std::fprintf(stderr, "\r%d asked, %d exact ", all.asked, all.exact);
  }
  if (all.asked == 0) throw std::runtime_error("no prompts");
  if (isatty(STDERR_FILENO)) std::fprintf(stderr, "\r");
  for (const auto& [kind, tally] : by_kind) print_row(kind.c_str(), tally);
  print_row(arguments.sparse.empty() ? "all, dense" : ("all, " + arguments.sparse).c_str(), all);
  if (!arguments.output.empty()) std::ofstream(arguments.output) << said.dump(1) << "\n";
  const bool as_on_card = card.empty() || !arguments.sparse.empty() ||
                          std::abs(all.exact - all.expected) <= arguments.tolerance;
  if (!as_on_card) std::printf("exact differs from the card by more than %d\n", arguments.tolerance);
  return as_on_card ? 0 : 1;
}

}  // namespace
}  // namespace cairn_test

int main(int argc, char** argv) {
  cairn_test::Arguments arguments;
  CLI::App app("Recall evaluation: exact match and nats per answer byte", "recall_eval");
  app.add_option("--model", arguments.model, "A .cairn file or a model folder")->required();
  app.add_option("--prompts", arguments.prompts, "JSONL with id, prompt, answer, kind")->required();
  app.add_option("--results", arguments.results, "results.json of the model's card: fail when exact differs");
  app.add_option("--tolerance", arguments.tolerance, "How far from the card")->capture_default_str();
  app.add_option("--sparse", arguments.sparse, "Read prompts with SparseGDN")
      ->check(CLI::IsMember({"adaptive", "all", "random", "fixed"}));
  app.add_option("--seed", arguments.seed, "Of --sparse random");
  app.add_option("--limit", arguments.limit, "Only the first prompts");
  app.add_option("--max-bytes", arguments.max_bytes, "Only prompts up to this size");
  app.add_option("--backend", arguments.backend)->capture_default_str();
  app.add_option("--threads", arguments.threads)->capture_default_str();
  app.add_option("--output", arguments.output, "Write what was said to each prompt as JSON");
  CLI11_PARSE(app, argc, argv);
  try {
    return cairn_test::evaluate(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "recall_eval: %s\n", error.what());
    return 1;
  }
}
