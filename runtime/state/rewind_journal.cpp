#include "runtime/state/rewind_journal.h"

#include <algorithm>
#include <cstring>

#include "runtime/support/checked_math.h"
#include "runtime/support/secure_zero.h"

namespace cairn {
namespace {

constexpr std::int64_t kChunk = 64;
constexpr std::int64_t kMinSpacing = 64, kMaxSpacing = 512;

std::int32_t chosen_spacing(std::int64_t window_tokens) {
  const std::int64_t eighth = window_tokens / 8 / kChunk * kChunk;
  return static_cast<std::int32_t>(std::clamp(eighth, kMinSpacing, kMaxSpacing));
}

}  // namespace

// ---------------------------------------------------------------- tokens

void TokenLog::start(std::int64_t position) {
  if (memory_) secure_zero(memory_.data(), memory_.size_bytes());
  begin_ = position;
  first_ = count_ = 0;
}

Status TokenLog::reserve(std::int64_t more) {
  const auto room = static_cast<std::int64_t>(memory_.size_bytes() / sizeof(std::int32_t));
  if (first_ + count_ + more <= room) return {};
  if (first_ > 0 && first_ >= count_ && count_ + more <= room) {
    std::memmove(memory_.data(), data(), static_cast<std::size_t>(count_) * sizeof(std::int32_t));
    first_ = 0;
    return {};
  }
  const auto wanted = checked_add<std::int64_t>(2 * count_ + 1024, more);
  const auto size_bytes = wanted ? checked_mul<std::int64_t>(*wanted, sizeof(std::int32_t)) : std::nullopt;
  if (!size_bytes) return Status::out_of_memory("rewind journal: no room for %lld tokens", static_cast<long long>(more));
  CAIRN_TRY_ASSIGN(HostBuffer larger, HostBuffer::allocate(static_cast<std::uint64_t>(*size_bytes), "rewind journal",
                                                           HostBuffer::OnRelease::kZero));
  if (count_ > 0) std::memcpy(larger.data(), data(), static_cast<std::size_t>(count_) * sizeof(std::int32_t));
  memory_ = std::move(larger);
  first_ = 0;
  return {};
}

void TokenLog::append(const std::int32_t* tokens, std::int64_t count) {
  if (count > 0) std::memcpy(data() + count_, tokens, static_cast<std::size_t>(count) * sizeof(std::int32_t));
  count_ += count;
}

void TokenLog::forget_before(std::int64_t position) {
  const std::int64_t gone = std::clamp<std::int64_t>(position - begin_, 0, count_);
  if (gone > 0) secure_zero(data(), static_cast<std::size_t>(gone) * sizeof(std::int32_t));
  first_ += gone;
  begin_ += gone;
  count_ -= gone;
}

void TokenLog::cut_at(std::int64_t position) {
  const std::int64_t kept = std::clamp<std::int64_t>(position - begin_, 0, count_);
  if (kept < count_) secure_zero(data() + kept, static_cast<std::size_t>(count_ - kept) * sizeof(std::int32_t));
  count_ = kept;
}

// ---------------------------------------------------------------- journal

RewindJournal::RewindJournal(std::int64_t window_tokens, std::int32_t spacing_tokens)
    : window_(window_tokens), spacing_(spacing_tokens > 0 ? spacing_tokens : chosen_spacing(window_tokens)) {}

std::int64_t RewindJournal::checkpoints_during(std::int64_t token_count) const {
  return is_on() ? std::min(token_count, window_ + kChunk) / spacing_ + 2 : 0;
}

Status RewindJournal::reserve(std::int64_t position, std::int64_t token_count) {
  if (!is_on()) return {};
  first_due_ = position + token_count - window_ - kChunk;  // a checkpoint comes up to a chunk later than it is due
  const auto spans = static_cast<std::size_t>(checkpoints_during(token_count)) + spans_.size() + 1;
  if (spans > spans_.capacity()) spans_.reserve(2 * spans);
  const std::int64_t kept = std::min(checkpoint_limit(), static_cast<std::int64_t>(checkpoints_.size()) + checkpoints_during(token_count));
  const std::size_t checkpoints = static_cast<std::size_t>(kept) + 1;  // one more before the oldest goes
  if (checkpoints > checkpoints_.capacity()) checkpoints_.reserve(2 * checkpoints);
  return tokens_.reserve(token_count);
}

/// Decode tokens in a row are one span. So are dense prefill pieces that meet at a chunk border: those of one call always
/// do, and those of two calls give the same bits as one call would.
void RewindJournal::append(const ReadSpan& piece, std::int64_t position, const std::int32_t* tokens) {
  if (!is_on() || piece.count == 0) return;
  tokens_.append(tokens, piece.count);
  if (!spans_.empty() && spans_.back().phase == piece.phase && !spans_.back().sparse && !piece.sparse) {
    const bool at_border = spans_.back().count % kChunk == 0;
    if (piece.phase == Phase::kDecode || at_border) {
      spans_.back().count += piece.count;
      return;
    }
  }
  spans_.push_back({position, piece.count, piece.phase, piece.sparse});
}

void RewindJournal::add(std::unique_ptr<Checkpoint> checkpoint, CheckpointList& dropped) {
  checkpoints_.push_back(std::move(checkpoint));
  forget_old(dropped);
}

/// Keeps the newest checkpoint at or before the window's begin, and all after it.
void RewindJournal::forget_old(CheckpointList& dropped) {
  const std::int64_t window_begin = checkpoints_.back()->position - window_;
  std::size_t gone = 0;
  while (gone + 1 < checkpoints_.size() && checkpoints_[gone + 1]->position <= window_begin) ++gone;
  for (std::size_t i = 0; i < gone; ++i) dropped.push_back(std::move(checkpoints_[i]));
  checkpoints_.erase(checkpoints_.begin(), checkpoints_.begin() + static_cast<std::ptrdiff_t>(gone));
  forget_tokens_before(checkpoints_.front()->position);
}

/// `position` is a checkpoint's: it lies at a chunk border of the span that it cuts.
void RewindJournal::forget_tokens_before(std::int64_t position) {
  tokens_.forget_before(position);
  std::size_t spans_gone = 0;
  while (spans_gone < spans_.size() && spans_[spans_gone].end() <= position) ++spans_gone;
  spans_.erase(spans_.begin(), spans_.begin() + static_cast<std::ptrdiff_t>(spans_gone));
  if (spans_.empty() || spans_.front().begin >= position) return;
  spans_.front().count -= position - spans_.front().begin;
  spans_.front().begin = position;
}

const Checkpoint* RewindJournal::find(std::int64_t position, bool prefer_tokens) const {
  const Checkpoint* found = nullptr;
  for (std::size_t i = checkpoints_.size(); i-- > 0;) {
    const Checkpoint& checkpoint = *checkpoints_[i];
    if (checkpoint.position > position) continue;
    const bool is_cut = std::any_of(spans_.begin(), spans_.end(), [&](const ReadSpan& span) {
      return span.sparse && span.begin < position && span.end() > checkpoint.position;
    });
    if (is_cut) break;
    if (!found) {
      found = &checkpoint;
      if (checkpoint.position < position || !prefer_tokens) break;
      continue;
    }
    if (position - checkpoint.position <= 2 * std::int64_t{spacing_}) found = &checkpoint;
    break;
  }
  return found;
}

Replay RewindJournal::replay_from(const Checkpoint& checkpoint, std::int64_t position) const {
  Replay replay;
  for (const ReadSpan& span : spans_) {
    const std::int64_t begin = std::max(span.begin, checkpoint.position), end = std::min(span.end(), position);
    if (begin < end) replay.spans.push_back({begin, end - begin, span.phase, span.sparse});
  }
  if (position > checkpoint.position) replay.tokens.assign(tokens_.at(checkpoint.position), tokens_.at(position));
  return replay;
}

RewindJournal::Tail RewindJournal::tail_after(std::int64_t position) const {
  Tail tail;
  tail.position = position;
  tail.spans = spans_;
  if (tokens_.end() > position) tail.tokens.assign(tokens_.at(position), tokens_.at(tokens_.end()));
  tail.checkpoints.reserve(checkpoints_.size());
  return tail;
}

void RewindJournal::cut(Tail& tail) {
  std::size_t kept = 0;
  while (kept < checkpoints_.size() && checkpoints_[kept]->position <= tail.position) ++kept;
  for (std::size_t i = kept; i < checkpoints_.size(); ++i) tail.checkpoints.push_back(std::move(checkpoints_[i]));
  checkpoints_.resize(kept);
  tokens_.cut_at(tail.position);
  while (!spans_.empty() && spans_.back().begin >= tail.position) spans_.pop_back();
  if (!spans_.empty()) spans_.back().count = std::min(spans_.back().count, tail.position - spans_.back().begin);
}

/// The room of what was cut was never given up.
void RewindJournal::put_back(Tail tail) {
  while (checkpoints_.size() > 1 && checkpoints_.back()->position > tail.position) checkpoints_.pop_back();
  for (std::unique_ptr<Checkpoint>& checkpoint : tail.checkpoints) checkpoints_.push_back(std::move(checkpoint));
  tokens_.cut_at(tail.position);
  tokens_.append(tail.tokens.data(), static_cast<std::int64_t>(tail.tokens.size()));
  spans_ = std::move(tail.spans);
}

CheckpointList RewindJournal::start(CheckpointList first) {
  tokens_.start(first.front()->position);
  spans_.clear();
  checkpoints_.swap(first);
  return first;
}

Status RewindJournal::load(CheckpointList checkpoints, std::vector<ReadSpan> spans, std::int64_t begin,
                           const std::vector<std::int32_t>& tokens) {
  tokens_.start(begin);
  CAIRN_TRY(tokens_.reserve(static_cast<std::int64_t>(tokens.size())));
  tokens_.append(tokens.data(), static_cast<std::int64_t>(tokens.size()));
  spans_ = std::move(spans);
  checkpoints_ = std::move(checkpoints);
  forget_tokens_before(checkpoints_.front()->position);
  return {};
}

}  // namespace cairn
