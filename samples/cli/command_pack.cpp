#include <cstdio>
#include <fstream>

#include "commands.h"
#include "progress_bar.h"

namespace cairn_cli {

static cairn_weight_format weight_format(const std::string& name) {
  if (name == "f32") return CAIRN_WEIGHT_F32;
  if (name == "bf16") return CAIRN_WEIGHT_BF16;
  if (name == "int8") return CAIRN_WEIGHT_INT8;
  if (name == "int4") return CAIRN_WEIGHT_INT4;
  return CAIRN_WEIGHT_KEEP;
}

void run_pack(const PackArguments& arguments) {
  cairn_pack_options options = CAIRN_PACK_OPTIONS_INIT;
  options.format = weight_format(arguments.weights);
  options.group_size = arguments.group_size;
  {
    ProgressBar bar("packing", "bytes");
    options.progress = ProgressBar::callback;
    options.progress_user = &bar;
    check(cairn_pack(arguments.folder.c_str(), arguments.output.c_str(), &options), "cannot pack");
  }
  std::ifstream file(arguments.output, std::ios::binary | std::ios::ate);
  std::printf("%s: %s\n", arguments.output.c_str(), human_bytes(static_cast<uint64_t>(file.tellg())).c_str());
}

}  // namespace cairn_cli
