// State: rewinding, to a checkpoint and from there by reading again.
#include "runtime/state/state.h"

namespace cairn {

std::int64_t State::oldest_rewind_position() const {
  return journal_.is_on() ? journal_.checkpoints().front()->position : position_;
}

bool State::can_rewind(std::int64_t position) const {
  if (position < 0 || position > position_) return false;
  if (position == position_ && is_valid_) return true;
  return journal_.is_on() && journal_.find(position, false) != nullptr;
}

Result<Replay> State::rewind_to_checkpoint(Queue& queue, std::int64_t position) {
  if (!can_rewind(position)) {
    return Status::invalid_argument("cannot rewind to %lld: positions in [%lld, %lld] can be reached, but not inside a sparse prefill",
                                    static_cast<long long>(position), static_cast<long long>(oldest_rewind_position()),
                                    static_cast<long long>(position_));
  }
  rewind_ = {};
  if (position == position_ && is_valid_) return Replay{};
  const Checkpoint* checkpoint = journal_.find(position, options_.keep_last_logits);
  Replay replay = journal_.replay_from(*checkpoint, position);
  CAIRN_TRY(queue.synchronize());
  CAIRN_TRY_ASSIGN(Rewind rewind, prepare_rewind(queue, *checkpoint));
  rewind_ = std::move(rewind);  // nothing after this takes memory
  is_valid_ = false;
  if (Status status = put_back(queue, *checkpoint); !status.ok()) {
    rewind_ = {};
    return status;
  }
  journal_.cut(rewind_.tail);
  is_valid_ = true;
  return replay;
}

/// All that going back to the checkpoint and undoing it needs, and what the state is now.
Result<State::Rewind> State::prepare_rewind(Queue& queue, const Checkpoint& checkpoint) {
  Rewind rewind;
  const QueueDrain drain(queue);
  rewind.is_open = true;
  rewind.position = position_;
  rewind.tail = journal_.tail_after(checkpoint.position);
  if (is_valid_) {
    if (has_last_logits_) {
      CAIRN_TRY_ASSIGN(rewind.last_logits, make_last_logits());
    }
    CAIRN_TRY_ASSIGN(rewind.before, take_checkpoint());
    CAIRN_TRY(capture(queue, *rewind.before));
    if (has_last_logits_) {
      CAIRN_TRY(queue.copy(rewind.last_logits.data(), last_logits_.data(), last_logits_.size_bytes(), CopyKind::kDeviceToDevice));
      rewind.has_last_logits = true;
    }
  }
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    if (!tables_[i]) continue;
    if (!checkpoint.is_empty) CAIRN_TRY(tables_[i]->prepare_restore(queue, checkpoint.tables[i]));
    if (rewind.before) CAIRN_TRY(tables_[i]->prepare_restore(queue, rewind.before->tables[i]));
  }
  return rewind;
}

Status State::finish_rewind(Queue& queue, bool is_successful) {
  if (!rewind_.is_open) return {};
  Rewind rewind = std::move(rewind_);
  rewind_ = {};
  Status status;
  if (is_successful) {
    recycle(rewind.tail.checkpoints);
    status = clear_kv(queue, position_, rewind.position);
  } else if (rewind.before) {
    is_valid_ = false;
    journal_.put_back(std::move(rewind.tail));
    status = put_back(queue, *rewind.before);
    if (rewind.has_last_logits) std::swap(last_logits_, rewind.last_logits);
    has_last_logits_ = rewind.has_last_logits;
    is_valid_ = status.ok();
  } else {
    invalidate();
    journal_.put_back(std::move(rewind.tail));
    position_ = rewind.position;
  }
  if (rewind.before) recycle(std::move(rewind.before));
  const Status finished = queue.synchronize();
  return status.ok() ? finished : status;
}

}  // namespace cairn
