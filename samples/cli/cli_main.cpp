// cairn: the command line. Reads the arguments and calls a command; knows nothing else.
#include <CLI/CLI.hpp>
#include <climits>
#include <cstdio>

#include "commands.h"
#include "progress_bar.h"

namespace cairn_cli {

static const char* const kFooter =
    "Exit status: 0 done, 1 failed (the message says why), 2 wrong use, 130 interrupted.";

static const CLI::Range kFromZero(0, INT_MAX), kFromOne(1, INT_MAX);

static const CLI::Validator kNoSign([](const std::string& text) { return text[0] == '-' ? text + " is negative" : ""; },
                                    "");

static void add_model_options(CLI::App* command, ModelArguments& arguments) {
  command->add_option("-m,--model", arguments.model_path, "A .cairn file, or a folder with config.json and safetensors "
                                                          "(default: the sample model)");
  command->add_option("--backend", arguments.backend, "auto, cpu, reference, cuda, rocm")->capture_default_str();
  command->add_option("--device", arguments.device_index, "Which device of the backend")->capture_default_str();
  command->add_option("--precision", arguments.precision, "Activations: default, f32, bf16")
      ->capture_default_str()
      ->check(CLI::IsMember({"default", "f32", "bf16"}));
  command->add_option("--sdm-rows", arguments.sdm_rows, "Rows of SDM tables in states: f32, or bf16 (half the memory)")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16"}));
}

static void add_threads_option(CLI::App* command, ModelArguments& arguments) {
  command->add_option("-t,--threads", arguments.threads, "Threads of the cpu backend; 0: all cores")
      ->capture_default_str()
      ->check(kFromZero);
}

static void add_seed_option(CLI::App* command, uint64_t& seed) {
  command->add_option("--seed", seed, "Of the draws")->capture_default_str()->check(kNoSign);
}

static void add_pack(CLI::App& app) {
  static PackArguments arguments;
  CLI::App* command = app.add_subcommand("pack", "Convert a model folder into one .cairn file");
  command->add_option("folder", arguments.folder, "Folder with config.json and safetensors")->required();
  command->add_option("output", arguments.output, "The .cairn file to write")->required();
  command->add_option("--weights", arguments.weights, "Linear layers as: keep, f32, bf16, int8, int4")
      ->capture_default_str()
      ->check(CLI::IsMember({"keep", "f32", "bf16", "int8", "int4"}));
  command->add_option("--group-size", arguments.group_size, "int4: 32 or 64 (0: 32)")->check(CLI::IsMember({0, 32, 64}));
  command->add_flag("--compare", arguments.compares, "Run the folder and the file, and tell how far their logits are apart");
  command->callback([] { run_pack(arguments); });
}

static void add_remember(CLI::App& app) {
  static RememberArguments arguments;
  CLI::App* command = app.add_subcommand("remember", "Read a text into a memory and save it");
  add_model_options(command, arguments.model);
  add_threads_option(command, arguments.model);
  command->add_option("-s,--state", arguments.state_path, "The memory: continued when it exists, else created")
      ->required();
  command->add_option("--text", arguments.text_path, "The text to read; - for standard input")->required();
  command->add_option("--sparse", arguments.sparse_policy, "With SparseGDN: adaptive (or no name), all, random, fixed")
      ->expected(0, 1)
      ->check(CLI::IsMember({"adaptive", "all", "random", "fixed"}));
  command->add_option("--seed", arguments.seed, "Seed of --sparse random")->check(kNoSign);
  command->add_flag("--raw", arguments.raw, "Read the bytes as they are: do not keep texts apart by a newline");
  command->callback([command] {
    if (command->count("--sparse") > 0 && arguments.sparse_policy.empty()) arguments.sparse_policy = "adaptive";
    run_remember(arguments);
  });
}

static void add_ask(CLI::App& app) {
  static AskArguments arguments;
  CLI::App* command = app.add_subcommand("ask", "Ask a memory; its file is unchanged unless --save");
  add_model_options(command, arguments.model);
  add_threads_option(command, arguments.model);
  command->add_option("-s,--state", arguments.state_path, "The memory to ask")->required();
  command->add_option("question", arguments.questions, "One or more questions")->required();
  command->add_option("--max-tokens", arguments.max_tokens, "Longest answer")
      ->capture_default_str()
      ->check(kFromOne);
  command->add_flag("--save", arguments.save, "Remember questions and answers too");
  command->callback([] { run_ask(arguments); });
}

static void add_run(CLI::App& app) {
  static RunArguments arguments;
  CLI::App* command = app.add_subcommand("run", "Complete a text, streamed");
  add_model_options(command, arguments.model);
  add_threads_option(command, arguments.model);
  command->add_option("prompt", arguments.prompt, "The text to go on from; - for standard input")->required();
  command->add_option("-s,--state", arguments.state_path, "A memory to start from");
  command->add_flag("--save", arguments.save, "Write the memory back to --state, which need not exist yet");
  command->add_option("-n,--max-tokens", arguments.max_tokens, "Most tokens to add")->capture_default_str()->check(kFromZero);
  command->add_option("--stop", arguments.stop_text, "End when the output holds this text");
  command->add_option("--temperature", arguments.temperature, "0: greedy")->capture_default_str();
  command->add_option("--top-k", arguments.top_k, "0: all")->capture_default_str();
  command->add_option("--top-p", arguments.top_p, "0: all")->capture_default_str();
  command->add_option("--min-p", arguments.min_p, "0: none")->capture_default_str();
  command->add_option("--repetition-penalty", arguments.repetition_penalty, "0: none")->capture_default_str();
  command->add_option("--recent-tokens", arguments.recent_tokens, "How far back the penalty looks")
      ->capture_default_str()
      ->check(kFromZero);
  add_seed_option(command, arguments.seed);
  command->callback([] { run_run(arguments); });
}

static void add_chat(CLI::App& app) {
  static ChatArguments arguments;
  CLI::App* command = app.add_subcommand("chat", "Talk with a model; /help tells how to save, fork and rewind");
  add_model_options(command, arguments.model);
  add_threads_option(command, arguments.model);
  command->add_option("MODEL", arguments.model.model_path, "As --model");
  command->add_option("--system", arguments.system, "The system message");
  command->add_option("-s,--state", arguments.state_path, "A saved talk to go on from");
  command->add_option("-n,--max-tokens", arguments.max_tokens, "Longest answer")->capture_default_str()->check(kFromOne);
  command->add_option("--temperature", arguments.temperature, "0: greedy")->capture_default_str();
  command->add_option("--top-p", arguments.top_p, "0: all")->capture_default_str();
  add_seed_option(command, arguments.seed);
  command->callback([] { run_chat(arguments); });
}

static void add_inspect(CLI::App& app) {
  static InspectArguments arguments;
  CLI::App* command = app.add_subcommand("inspect", "Show what a model or a memory holds");
  add_model_options(command, arguments.model);
  add_threads_option(command, arguments.model);
  command->add_option("file", arguments.path, "A .cairn model or a saved memory")->required();
  command->add_option("--plot", arguments.plot_path, "Write the picture of used slots to a .png or .svg file");
  command->callback([] { run_inspect(arguments); });
}

static void add_bench(CLI::App& app) {
  static BenchArguments arguments;
  CLI::App* command = app.add_subcommand("bench", "Measure prefill and decode speed");
  add_model_options(command, arguments.model);
  command->add_option("--batch", arguments.batches, "Sequences at once")->capture_default_str()->delimiter(',');
  command->add_option("--thread-counts", arguments.threads, "Threads to measure with")
      ->capture_default_str()
      ->delimiter(',');
  command->add_option("--prefill-tokens", arguments.prefill_tokens, "Per batch")
      ->capture_default_str()
      ->check(kFromOne);
  command->add_option("--decode-tokens", arguments.decode_tokens, "Per sequence")
      ->capture_default_str()
      ->check(kFromOne);
  command->add_option("--repeats", arguments.repeats, "The median counts")
      ->capture_default_str()
      ->check(kFromOne);
  command->add_flag("--json", arguments.json, "Print JSON instead of a table");
  command->callback([] { run_bench(arguments); });
}

static void add_doctor(CLI::App& app) {
  static DoctorArguments arguments;
  CLI::App* command = app.add_subcommand("doctor", "Tell what was found, what is missing, and why");
  add_model_options(command, arguments.model);
  add_threads_option(command, arguments.model);
  command->callback([] {
    if (!run_doctor(arguments)) throw Failure("not everything works: see above");
  });
}

static int run_program(int argc, char** argv) {
  CLI::App app("cairn: an agent's memory in a recurrent state", "cairn");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("cairn ") + cairn_version_string());
  app.footer(kFooter);
  add_remember(app);
  add_ask(app);
  add_run(app);
  add_chat(app);
  add_pack(app);
  add_inspect(app);
  add_bench(app);
  add_doctor(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) return kExitUsage;
  }
  check_output();
  return 0;
}

}  // namespace cairn_cli

int main(int argc, char** argv) {
  cairn_cli::catch_interrupts();
  try {
    return cairn_cli::run_program(argc, argv);
  } catch (const cairn_cli::Failure& failure) {
    std::fprintf(stderr, "cairn: %s\n", failure.what());
    return failure.exit_status();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cairn: %s\n", error.what());
    return cairn_cli::kExitFailed;
  }
}
