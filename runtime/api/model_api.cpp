// cairn/model.h: loading models and telling what they are. Tokens and text: text_api.cpp.
#include <sys/stat.h>

#include "runtime/api/objects.h"
#include "runtime/execution/plan.h"
#include "runtime/import/import_folder.h"
#include "runtime/model/cairn_file_reader.h"
#include "runtime/model/pack.h"
#include "runtime/support/file.h"
#include "runtime/text/tokenizer.h"

namespace cairn::api {

Status read_limits(const cairn_limits* from, cairn_limits& limits) {
  CAIRN_TRY(read_options(from, "cairn_limits", limits));
  return check_reserved(static_cast<std::int32_t>(limits.reserved), "cairn_limits");
}

namespace {

constexpr std::int64_t kDefaultKvCapacity = 4096;

Status check_model_options(const cairn_model_options& options) {
  if (options.verify != CAIRN_VERIFY_FULL && options.verify != CAIRN_VERIFY_STRUCTURE) {
    return Status::invalid_argument("verify %d is neither 0 (full) nor 1 (structure)", options.verify);
  }
  if (options.precision < CAIRN_PRECISION_DEFAULT || options.precision > CAIRN_PRECISION_BF16) {
    return Status::invalid_argument("precision %d is outside [0, 2]", options.precision);
  }
  if (options.sdm_rows < CAIRN_PRECISION_DEFAULT || options.sdm_rows > CAIRN_PRECISION_BF16) {
    return Status::invalid_argument("sdm_rows %d is outside [0, 2]", options.sdm_rows);
  }
  CAIRN_TRY(check_flag(options.no_mmap, "no_mmap"));
  return check_flag(options.check_finite, "check_finite");
}

CairnFileReadOptions file_options(const cairn_model_options& options, const cairn_limits& limits) {
  CairnFileReadOptions read;
  read.limits = ModelLimits::from(&limits);
  read.verify_payload = options.verify == CAIRN_VERIFY_FULL;
  read.no_mmap = options.no_mmap != 0;
  read.check_finite = options.check_finite != 0;
  read.progress = progress_of(options.progress, options.progress_user);
  return read;
}

/// The device that computes at the precision asked for: on host backends rounding is a property of the device.
Result<std::shared_ptr<const Device>> device_for(const DeviceObject& object, cairn_precision precision) {
  const Device& device = *object.device;
  const bool wants_bf16 = precision == CAIRN_PRECISION_BF16;
  if (!device.backend().host_memory || device.options().bf16_products == wants_bf16) return object.device;
  DeviceOptions options = device.options();
  options.bf16_products = wants_bf16;
  CAIRN_TRY_ASSIGN(std::shared_ptr<Device> opened, Device::open(device.backend().name, options));
  return std::shared_ptr<const Device>(std::move(opened));
}

DType activations_for(const Device& device, cairn_precision precision) {
  if (device.backend().host_memory || precision == CAIRN_PRECISION_F32) return DType::kF32;
  return precision == CAIRN_PRECISION_BF16 ? DType::kBF16 : device.backend().activation_dtype;
}

Status finish_load(const DeviceObject& device, ModelDescription description, const cairn_model_options& options,
                   const ModelLimits& limits, cairn_model** model) {
  auto shared = std::make_shared<const ModelDescription>(std::move(description));
  auto object = std::make_shared<ModelObject>();
  if (shared->tokenizer.kind != TokenizerKind::kNone) {
    CAIRN_TRY_ASSIGN(object->tokenizer, make_tokenizer(shared->tokenizer));
  }
  CAIRN_TRY_ASSIGN(std::shared_ptr<const Device> chosen, device_for(device, options.precision));
  PlanOptions plan;
  plan.limits = limits;
  plan.activations = activations_for(*chosen, options.precision);
  plan.sdm_rows = options.sdm_rows == CAIRN_PRECISION_BF16 ? DType::kBF16 : DType::kF32;
  CAIRN_TRY_ASSIGN(object->plan, Plan::build(std::move(shared), std::move(chosen), plan));
  return give_out(std::move(object), model);
}

bool is_folder(const char* path) {
  struct stat info{};
  return ::stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

Status read_options_and_limits(const cairn_model_options* options_in, cairn_model_options& options, cairn_limits& limits) {
  CAIRN_TRY(read_options(options_in, "cairn_model_options", options));
  CAIRN_TRY(read_limits(options.limits, limits));
  return check_model_options(options);
}

Status load(cairn_device* device, const char* path, const cairn_model_options* options_in, cairn_model** model) {
  CAIRN_REQUIRE(model);
  *model = nullptr;
  CAIRN_REQUIRE(path);
  cairn_model_options options = CAIRN_MODEL_OPTIONS_INIT;
  cairn_limits limits = CAIRN_LIMITS_INIT;
  CAIRN_TRY(read_options_and_limits(options_in, options, limits));
  CAIRN_TRY_ASSIGN(const Pin<DeviceObject> held, pin<DeviceObject>(device));
  const CairnFileReadOptions read = file_options(options, limits);
  ModelDescription description;
  if (is_folder(path)) {
    CAIRN_TRY_ASSIGN(description, import_folder(path, {read.limits, read.no_mmap, read.check_finite, read.progress}));
  } else {
    CAIRN_TRY_ASSIGN(description, read_cairn_file(path, read));
  }
  return with_path(path, finish_load(*held, std::move(description), options, read.limits, model));
}

Status load_from_memory(cairn_device* device, const void* data, size_t size_bytes, const cairn_model_options* options_in,
                        cairn_model** model) {
  CAIRN_REQUIRE(model);
  *model = nullptr;
  CAIRN_REQUIRE(data);
  cairn_model_options options = CAIRN_MODEL_OPTIONS_INIT;
  cairn_limits limits = CAIRN_LIMITS_INIT;
  CAIRN_TRY(read_options_and_limits(options_in, options, limits));
  CAIRN_TRY_ASSIGN(const Pin<DeviceObject> held, pin<DeviceObject>(device));
  const CairnFileReadOptions read = file_options(options, limits);
  CAIRN_TRY_ASSIGN(ModelDescription description, read_cairn_memory(data, size_bytes, read));
  return finish_load(*held, std::move(description), options, read.limits, model);
}

Status fill_info(const ModelObject& object, cairn_model_info& info) {
  const Plan& plan = *object.plan;
  const ModelDescription& model = plan.description();
  copy_text(model.architecture.c_str(), sizeof info.architecture, info.architecture);
  copy_text(model.name.c_str(), sizeof info.name, info.name);
  info.layer_count = static_cast<std::int32_t>(model.layers.size());
  info.model_dim = model.model_dim;
  info.vocab_size = model.vocab_size;
  info.bos_token = model.tokenizer.bos;
  info.add_bos = model.tokenizer.add_bos ? 1 : 0;
  info.eos_token = model.tokenizer.eos;
  info.trained_tokens = model.trained_tokens;
  info.parameter_count = plan.parameter_count();
  info.weight_bytes = plan.weight_bytes();
  info.fresh_state_bytes = plan.state_layout()->fresh_bytes(kDefaultKvCapacity);
  info.kv_bytes_per_token = plan.state_layout()->kv_bytes_per_token();
  std::memcpy(info.fingerprint, model.fingerprint.data(), sizeof info.fingerprint);
  return {};
}

const char* mlp_name(MlpKind kind) {
  return kind == MlpKind::kSwiglu ? "swiglu" : kind == MlpKind::kMoe ? "moe" : "none";
}

const char* routing_name(Routing kind) {
  switch (kind) {
    case Routing::kCler: return "cler";
    case Routing::kClerH: return "cler_h";
    case Routing::kClvr: return "clvr";
    default: return "none";
  }
}

void fill_mixer(const LayerConfig& layer, cairn_layer_info& info) {
  const auto dims = [&info](std::int32_t key_heads, std::int32_t value_heads, std::int32_t key_dim, std::int32_t value_dim) {
    info.key_heads = key_heads;
    info.value_heads = value_heads;
    info.key_dim = key_dim;
    info.value_dim = value_dim;
  };
  const char* name = mechanism_name(layer.mechanism);
  switch (layer.mechanism) {
    case Mechanism::kSse:
      dims(layer.sse.heads, layer.sse.heads, layer.sse.key_dim, layer.sse.value_dim);
      info.partitions = layer.sse.partitions;
      if (layer.has_side_attention) info.window = layer.side_attention.window;
      break;
    case Mechanism::kSdm:
      dims(layer.sdm.heads, layer.sdm.heads, layer.sdm.side, layer.sdm.value_dim);
      info.slots = std::int64_t{layer.sdm.side} * layer.sdm.side;
      break;
    case Mechanism::kSoftmaxAttention:
      dims(layer.attention.kv_heads, layer.attention.query_heads, layer.attention.head_dim, layer.attention.head_dim);
      info.window = layer.attention.window;
      if (info.window > 0) name = "sliding_window_attention";
      break;
    case Mechanism::kLatentAttention:
      dims(1, layer.latent.heads, layer.latent.nope_dim + layer.latent.shared_dim, layer.latent.value_dim);
      break;
    default:
      dims(layer.delta.key_heads, layer.delta.value_heads, layer.delta.key_dim, layer.delta.value_dim);
      break;
  }
  copy_text(name, sizeof info.mechanism, info.mechanism);
}

/// Bytes of a slot in a fresh state; of a slot table that is its index of the model's rows.
std::uint64_t fresh_slot_bytes(const StateLayout& layout, std::size_t slot) {
  const StateSlot& entry = layout.slots()[slot];
  if (entry.kind != SlotKind::kSlotTable) return layout.slot_bytes(static_cast<std::int32_t>(slot), kDefaultKvCapacity);
  return SlotTable::geometry(entry).index_bytes();
}

Status fill_layer_info(const ModelObject& object, std::int32_t index, cairn_layer_info& info) {
  const ModelDescription& model = object.plan->description();
  if (index < 0 || static_cast<std::size_t>(index) >= model.layers.size()) {
    return Status::invalid_argument("layer %d is outside [0, %zu)", index, model.layers.size());
  }
  const LayerConfig& layer = model.layers[static_cast<std::size_t>(index)];
  fill_mixer(layer, info);
  copy_text(mlp_name(layer.mlp.kind), sizeof info.mlp, info.mlp);
  copy_text(routing_name(layer.routing.kind), sizeof info.routing, info.routing);
  const std::string prefix = "layers." + std::to_string(index) + ".";
  for (const TensorEntry& tensor : model.tensors) {
    if (tensor.name.compare(0, prefix.size(), prefix) != 0) continue;
    std::uint64_t count = 1;
    for (const std::int64_t dim : tensor.shape) count *= static_cast<std::uint64_t>(dim);
    info.parameter_count += count;
  }
  const StateLayout& layout = *object.plan->state_layout();
  for (std::size_t slot = 0; slot < layout.slots().size(); ++slot) {
    if (layout.slots()[slot].layer == index) info.state_bytes += fresh_slot_bytes(layout, slot);
  }
  return {};
}

Status pack_folder(const char* folder, const char* path, const cairn_pack_options* options_in) {
  CAIRN_REQUIRE(folder);
  CAIRN_REQUIRE(path);
  cairn_pack_options options = CAIRN_PACK_OPTIONS_INIT;
  CAIRN_TRY(read_options(options_in, "cairn_pack_options", options));
  cairn_limits limits = CAIRN_LIMITS_INIT;
  CAIRN_TRY(read_limits(options.limits, limits));
  if (options.format < CAIRN_WEIGHT_KEEP || options.format > CAIRN_WEIGHT_INT4) {
    return Status::invalid_argument("weight format %d is outside [0, 4]", options.format);
  }
  PackOptions pack_options;
  pack_options.limits = ModelLimits::from(&limits);
  pack_options.format = static_cast<WeightFormat>(options.format);
  if (options.group_size != 0) pack_options.group_size = options.group_size;
  pack_options.progress = progress_of(options.progress, options.progress_user);
  return pack(folder, path, pack_options);
}

}  // namespace
}  // namespace cairn::api

using namespace cairn;
using namespace cairn::api;

cairn_status cairn_model_load(cairn_device* device, const char* path, const cairn_model_options* options, cairn_model** model) {
  return guarded([&] { return load(device, path, options, model); });
}

cairn_status cairn_model_load_from_memory(cairn_device* device, const void* data, size_t size_bytes,
                                          const cairn_model_options* options, cairn_model** model) {
  return guarded([&] { return load_from_memory(device, data, size_bytes, options, model); });
}

cairn_status cairn_pack(const char* folder, const char* path, const cairn_pack_options* options) {
  return guarded([&] { return pack_folder(folder, path, options); });
}

cairn_status cairn_model_get_info(const cairn_model* model, cairn_model_info* info) {
  return guarded([&]() -> Status {
    CAIRN_TRY(check_info(info, "info"));
    CAIRN_TRY_ASSIGN(const Pin<ModelObject> held, pin<ModelObject>(model));
    cairn_model_info full = CAIRN_MODEL_INFO_INIT;
    CAIRN_TRY(fill_info(*held, full));
    return write_info(full, "info", info);
  });
}

cairn_status cairn_model_get_layer_info(const cairn_model* model, int32_t index, cairn_layer_info* info) {
  return guarded([&]() -> Status {
    CAIRN_TRY(check_info(info, "info"));
    CAIRN_TRY_ASSIGN(const Pin<ModelObject> held, pin<ModelObject>(model));
    cairn_layer_info full = CAIRN_LAYER_INFO_INIT;
    CAIRN_TRY(fill_layer_info(*held, index, full));
    return write_info(full, "info", info);
  });
}

void cairn_model_release(cairn_model* model) { give_back<ModelObject>(model); }
