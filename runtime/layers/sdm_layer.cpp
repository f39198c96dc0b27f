// Sparse delta memory: product-key slot tables over a learned M0 (spec 5, 8).
#include "runtime/layers/layer.h"

namespace cairn {
namespace {

class SdmLayer : public Mixer {
 public:
  Status bind(const LayerBuild& build) {
    config_ = build.config.sdm;
    CAIRN_TRY_ASSIGN(output_, GatedOutput::bind(build, config_.heads, config_.value_dim, 0));
    CAIRN_TRY_ASSIGN(routing_, CrossLayerRouting::bind(build, config_.heads, config_.value_dim));
    std::vector<std::string> names;
    for (const char* part : {"k", "q", "v", "a", "b"}) names.push_back(build.mixer(part));
    if (output_.has_full_gate()) names.push_back(build.mixer("z"));
    CAIRN_TRY_ASSIGN(group_, build.weights.linear_group(names));
    CAIRN_TRY_ASSIGN(a_log_, build.weights.vector(build.mixer("a_log")));
    CAIRN_TRY_ASSIGN(dt_bias_, build.weights.vector(build.mixer("dt_bias")));
    const std::int64_t slots = static_cast<std::int64_t>(config_.side) * config_.side;
    table_slot_ = build.add_slot("table", SlotKind::kSlotTable, {config_.heads, slots, config_.value_dim});
    if (config_.learned_initial) {
      CAIRN_TRY_ASSIGN(initial_, build.weights.table(build.mixer("initial")));
    }
    StateSlot& slot = build.slots[table_slot_];
    slot.initial = initial_.data;
    slot.initial_dtype = initial_.dtype;
    config_.write_count = static_cast<std::int32_t>(std::min<std::int64_t>(config_.write_count, slots));
    config_.read_count = static_cast<std::int32_t>(std::min<std::int64_t>(config_.read_count, slots));
    slot.writes_per_token = config_.write_count;
    return {};
  }

  void run(Step& step, ConstRows x, const MixerOutput& output) override {
    const Step::Scope scope(step);
    const std::int64_t width = static_cast<std::int64_t>(config_.heads) * config_.value_dim;
    const Rows projected = step.rows(group_.width);
    run_group(step, group_, x, projected);
    const auto column = [&](int i) { return columns(projected, group_.offsets[i], step.dtype()); };
    const std::int64_t gate_count = static_cast<std::int64_t>(step.token_count()) * config_.heads;
    float *log_decay = step.floats(gate_count), *beta = step.floats(gate_count);
    DecayGateArgs decay{step.dtype(), DecayKind::kSoftplus, 0, step.token_count(), config_.heads, 1,
                        a_log_, dt_bias_, column(3), log_decay};
    step.run(step.ops().decay_gate, decay, "decay_gate");
    run_sigmoid_f32(step, config_.heads, 1, column(4), beta);

    const ConstRows raw_value = column(2);
    const Rows residual = routing_.residual_rows(step);
    const Rows o = step.rows(width);
    SdmArgs args{};
    args.dtype = step.dtype();
    args.phase = step.phase;
    args.batch = step.batch;
    args.slot_residual = config_.slot_residual;
    args.key_weighted_decay = config_.key_weighted_decay;
    args.head_count = config_.heads;
    args.side = config_.side;
    args.value_dim = config_.value_dim;
    args.write_count = config_.write_count;
    args.read_count = config_.read_count;
    args.write_scale = config_.write_scale;
    args.read_scale = config_.read_scale;
    args.write_scores = column(0);
    args.read_scores = column(1);
    args.v = routing_.apply_to_value(step, raw_value);
    args.log_decay = log_decay;
    args.beta = beta;
    args.initial = initial_.data;
    args.initial_dtype = initial_.dtype;
    args.rows_per_slab = step.states.rows_per_slab[table_slot_];
    args.row_dtype = step.states.row_dtypes[table_slot_];
    args.tables = step.states.tables[table_slot_];
    args.out = o;
    args.residual = residual;
    step.run(step.ops().sdm, args, "sdm");

    output_.run(step, o, output_.has_full_gate() ? ConstRows(column(5)) : ConstRows(), output);
    routing_.finish(step, raw_value, residual, beta, output);
  }

 private:
  SdmConfig config_;
  GatedOutput output_;
  CrossLayerRouting routing_;
  LinearGroup group_;  // k, q, v, a, b, z
  const float *a_log_ = nullptr, *dt_bias_ = nullptr;
  WeightTable initial_;
  std::int32_t table_slot_ = -1;
};

}  // namespace

Result<std::unique_ptr<Mixer>> make_sdm(const LayerBuild& build) {
  auto layer = std::make_unique<SdmLayer>();
  CAIRN_TRY(layer->bind(build));
  return std::unique_ptr<Mixer>(std::move(layer));
}

}  // namespace cairn
