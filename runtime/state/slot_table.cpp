#include "runtime/state/slot_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace cairn {
namespace {

constexpr std::uint64_t kSmallTableBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kSlabBytes = std::uint64_t{4} << 20;
constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max() - 1;

}  // namespace

// ---------------------------------------------------------------- making a table

SlotTable::Geometry SlotTable::geometry(const StateSlot& slot) {
  Geometry g;
  g.slot_count = static_cast<std::int32_t>(slot.shape[0] * slot.shape[1]);
  g.value_dim = static_cast<std::int32_t>(slot.shape[2]);
  g.row_dtype = slot.row_dtype;
  g.writes_per_token = static_cast<std::int32_t>(slot.shape[0] * std::min<std::int64_t>(slot.writes_per_token, slot.shape[1]));
  const std::uint64_t table_bytes = g.row_bytes() * static_cast<std::uint64_t>(g.slot_count);
  g.is_small = table_bytes <= kSmallTableBytes;
  const std::uint64_t slab_bytes = g.is_small ? table_bytes / 8 : kSlabBytes;
  g.rows_per_slab = static_cast<std::int32_t>(std::bit_floor(std::max<std::uint64_t>(1, slab_bytes / g.row_bytes())));
  return g;
}

SlotTable::SlotTable(std::shared_ptr<const Device> device, const Geometry& geometry)
    : device_(std::move(device)), geometry_(geometry) {}

Result<std::unique_ptr<SlotTable>> SlotTable::create(std::shared_ptr<const Device> device, const StateSlot& slot, Queue& queue) {
  std::unique_ptr<SlotTable> table(new SlotTable(std::move(device), geometry(slot)));
  const QueueDrain drain(queue);
  CAIRN_TRY(table->allocate_arrays());
  CAIRN_TRY(table->fill_index(queue));
  CAIRN_TRY(table->write_control(queue, 0, 0));
  return table;
}

Status SlotTable::allocate_arrays() {
  CAIRN_TRY_ASSIGN(index_, device_->allocate(geometry_.index_bytes()));
  index_.zero_on_release();
  CAIRN_TRY_ASSIGN(control_, device_->allocate(2 * sizeof(std::int32_t)));
  // Room for one private table over one frozen one; reserve_pointers() makes more.
  const auto pointers = static_cast<std::size_t>(std::min<std::int64_t>(2 * slabs_for(geometry_.slot_count) + 2, 1 << 16));
  CAIRN_TRY_ASSIGN(slab_pointers_, device_->allocate(pointers * sizeof(void*)));
  return {};
}

Status SlotTable::fill_index(Queue& queue) {
  if (device_->backend().host_memory) {
    std::memset(index_.data(), 0xff, index_.size_bytes());
    return {};
  }
  static const std::vector<std::int32_t> minus_ones(16384, -1);
  std::byte* to = index_.as<std::byte>();
  std::size_t done = std::min(index_.size_bytes(), minus_ones.size() * sizeof(std::int32_t));
  CAIRN_TRY(queue.copy(to, minus_ones.data(), done, CopyKind::kHostToDevice));
  while (done < index_.size_bytes()) {
    const std::size_t count = std::min(done, index_.size_bytes() - done);
    CAIRN_TRY(queue.copy(to + done, to, count, CopyKind::kDeviceToDevice));
    done += count;
  }
  return {};
}

SdmTable SlotTable::view() const {
  return {index_.as<std::int32_t>(), slab_pointers_.as<void*>(), control_.as<std::int32_t>()};
}

std::byte* SlotTable::row_address(const SlabList& slabs, const Geometry& geometry, std::int32_t row) {
  return slabs[static_cast<std::size_t>(row / geometry.rows_per_slab)]->as<std::byte>() +
         static_cast<std::uint64_t>(row % geometry.rows_per_slab) * geometry.row_bytes();
}

std::uint64_t SlotTable::array_bytes() const {
  return index_.size_bytes() + control_.size_bytes() + slab_pointers_.size_bytes();
}

std::uint64_t SlotTable::bytes_beyond_slots() const {
  const auto held = static_cast<std::int64_t>(slabs_.size() + spare_.size());
  const std::int64_t beyond = std::max<std::int64_t>(0, held - slabs_for(geometry_.slot_count));
  return static_cast<std::uint64_t>(beyond) * geometry_.slab_bytes();
}

// ---------------------------------------------------------------- what the device sees

/// Exact from here until the next operator runs.
Status SlotTable::read_control(Queue& queue) {
  std::int32_t rows_in_use = 0;
  CAIRN_TRY(queue.copy(&rows_in_use, control_.data(), sizeof rows_in_use, CopyKind::kDeviceToHost));
  CAIRN_TRY(queue.synchronize());
  rows_bound_ = rows_in_use;
  return {};
}

Status SlotTable::write_control(Queue& queue, std::int64_t rows_in_use, std::int64_t first_private) {
  const std::int32_t values[2] = {static_cast<std::int32_t>(rows_in_use), static_cast<std::int32_t>(first_private)};
  CAIRN_TRY(queue.copy(control_.data(), values, sizeof values, CopyKind::kHostToDevice));
  CAIRN_TRY(queue.synchronize());
  rows_bound_ = rows_in_use;
  return {};
}

/// Room to tell the device of this many slabs.
Status SlotTable::reserve_pointers(Queue& queue, std::size_t count) {
  host_pointers_.reserve(count);
  if (count * sizeof(void*) <= slab_pointers_.size_bytes()) return {};
  CAIRN_TRY_ASSIGN(DeviceBuffer larger, device_->allocate(2 * count * sizeof(void*)));
  std::swap(slab_pointers_, larger);
  return write_slab_pointers(queue);
}

/// Of slabs_, for which there is room.
Status SlotTable::write_slab_pointers(Queue& queue) {
  host_pointers_.clear();
  for (const std::shared_ptr<Slab>& slab : slabs_) host_pointers_.push_back(slab->data());
  CAIRN_TRY(queue.copy(slab_pointers_.data(), host_pointers_.data(), host_pointers_.size() * sizeof(void*), CopyKind::kHostToDevice));
  return queue.synchronize();
}

/// Trades places with the table's slabs; not on failure.
Status SlotTable::swap_slabs(Queue& queue, SlabList& slabs) {
  CAIRN_TRY(reserve_pointers(queue, slabs.size()));
  slabs_.swap(slabs);
  Status status = write_slab_pointers(queue);
  if (!status.ok()) slabs_.swap(slabs);
  return status;
}

// ---------------------------------------------------------------- rows

std::int64_t SlotTable::slabs_for(std::int64_t rows) const {
  return (rows + geometry_.rows_per_slab - 1) / geometry_.rows_per_slab;
}

/// True when no other table and no checkpoint reaches the slab. Nobody else can begin to: that takes a reference.
/// Giving the second reference back orders this thread behind those who gave theirs back.
bool SlotTable::is_private(const std::shared_ptr<Slab>& slab) {
  std::shared_ptr<Slab>(slab).reset();
  return slab.use_count() == 1;
}

/// Most rows that can be in use after token_count more tokens.
std::int64_t SlotTable::bound_after(std::int64_t token_count, std::int64_t freeze_count) const {
  const std::int64_t most_tokens = std::numeric_limits<std::int64_t>::max() / 4 / geometry_.writes_per_token;
  const std::int64_t by_writes = rows_bound_ + std::min(token_count, most_tokens) * geometry_.writes_per_token;
  const std::int64_t most_freezes = std::numeric_limits<std::int32_t>::max();
  return std::min(by_writes, epoch_base_ + (std::min(freeze_count, most_freezes) + 1) * geometry_.slot_count);
}

Status SlotTable::reserve(Queue& queue, std::int64_t token_count, std::int64_t freeze_count) {
  std::int64_t bound = bound_after(token_count, freeze_count);
  if (bound > capacity_rows()) {
    CAIRN_TRY(read_control(queue));
    bound = bound_after(token_count, freeze_count);
  }
  if (bound > capacity_rows() && may_have_dead_rows()) {
    CAIRN_TRY(reclaim_dead_rows(queue));
    bound = bound_after(token_count, freeze_count);
  }
  if (bound > capacity_rows()) CAIRN_TRY(grow(queue, bound));
  rows_bound_ = bound;
  return {};
}

/// A small table is taken whole, so that decode allocates nothing later; others grow by a quarter.
std::int64_t SlotTable::rows_wanted(std::int64_t rows_at_least) const {
  const std::int64_t whole = epoch_base_ + geometry_.slot_count;
  if (geometry_.is_small && !was_captured_) return std::max(rows_at_least, whole);
  return std::max(rows_at_least, std::min(whole, rows_bound_ + rows_bound_ / 4));
}

Status SlotTable::grow(Queue& queue, std::int64_t rows_at_least) {
  if (rows_at_least > kMaxRows) {
    return Status::limit_exceeded("slot table: %lld rows needed, more than %lld", static_cast<long long>(rows_at_least),
                                  static_cast<long long>(kMaxRows));
  }
  const auto least = static_cast<std::size_t>(slabs_for(rows_at_least));
  const auto wanted = static_cast<std::size_t>(slabs_for(std::min(rows_wanted(rows_at_least), kMaxRows)));
  SlabList slabs;
  slabs.reserve(wanted);
  slabs = slabs_;
  while (slabs.size() < wanted) {
    auto slab = take_slab();
    if (!slab.ok() && slabs.size() < least) return slab.status();
    if (!slab.ok()) break;
    slabs.push_back(std::move(slab).value());
  }
  return swap_slabs(queue, slabs);
}

Result<std::shared_ptr<Slab>> SlotTable::take_slab() {
  if (!spare_.empty()) {
    std::shared_ptr<Slab> slab = std::move(spare_.back());
    spare_.pop_back();
    return slab;
  }
  CAIRN_TRY_ASSIGN(Slab memory, device_->allocate(geometry_.slab_bytes()));
  memory.zero_on_release();
  return std::make_shared<Slab>(std::move(memory));
}

/// Keeps a slab that nobody else reaches for reuse, as long as there are not more spare ones than used ones, and room.
void SlotTable::drop_slab(std::shared_ptr<Slab> slab) noexcept {
  if (!is_private(slab) || spare_.size() > slabs_.size() + 1) return;
  try {
    spare_.push_back(std::move(slab));
  } catch (const std::bad_alloc&) {
    // It is given back.
  }
}

// ---------------------------------------------------------------- dead rows

/// Rows die when a frozen one is copied to be written: only after a freeze, and one for each row taken since.
bool SlotTable::may_have_dead_rows() const { return was_frozen_ || rows_bound_ >= 2 * std::max<std::int64_t>(1, rows_at_last_look_); }

/// Compacts when dead rows outnumber live ones. Reads the whole index: its cost is spread over the rows taken since.
Status SlotTable::reclaim_dead_rows(Queue& queue) {
  CAIRN_TRY(read_index(queue, host_index_));
  std::vector<std::int64_t> live_rows(slabs_.size(), 0);
  std::int64_t live = 0;
  for (const std::int32_t row : host_index_) {
    if (row < 0) continue;
    ++live_rows[static_cast<std::size_t>(row / geometry_.rows_per_slab)];
    ++live;
  }
  if (rows_bound_ - live > live) CAIRN_TRY(compact(queue, live_rows));
  was_frozen_ = false;
  rows_at_last_look_ = rows_bound_;
  return {};
}

/// New order of rows: shared slabs (frozen), well-filled private slabs, then the rows of the other private slabs, moved
/// together. Slabs without live rows leave. Private rows can be written in place again. host_index_ is the index.
Status SlotTable::compact(Queue& queue, const std::vector<std::int64_t>& live_rows) {
  const std::int64_t rows_per_slab = geometry_.rows_per_slab;
  std::vector<std::int64_t> new_base(slabs_.size(), -1);
  SlabList kept, left;
  kept.reserve(slabs_.size());
  left.reserve(slabs_.size());
  std::int64_t private_live = 0, moved = 0;
  const auto keep = [&](std::size_t slab) {
    new_base[slab] = static_cast<std::int64_t>(kept.size()) * rows_per_slab;
    kept.push_back(slabs_[slab]);
  };
  std::vector<bool> is_own(slabs_.size());
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    is_own[i] = is_private(slabs_[i]);
    if (!is_own[i] && live_rows[i] > 0) keep(i);
  }
  const std::int64_t frozen = static_cast<std::int64_t>(kept.size()) * rows_per_slab;
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    if (is_own[i] && 2 * live_rows[i] >= rows_per_slab) keep(i);
    if (is_own[i]) private_live += live_rows[i];
    if (is_own[i] && new_base[i] < 0) moved += live_rows[i];
    if (new_base[i] < 0) left.push_back(slabs_[i]);
  }
  std::int64_t next_row = static_cast<std::int64_t>(kept.size()) * rows_per_slab;
  const std::int64_t slab_count = static_cast<std::int64_t>(kept.size()) + slabs_for(moved);
  while (static_cast<std::int64_t>(kept.size()) < slab_count) {
    CAIRN_TRY_ASSIGN(std::shared_ptr<Slab> slab, take_slab());
    kept.push_back(std::move(slab));
  }
  for (std::int32_t& row : host_index_) {
    if (row < 0) continue;
    const std::int64_t base = new_base[static_cast<std::size_t>(row / rows_per_slab)];
    if (base >= 0) {
      row = static_cast<std::int32_t>(base + row % rows_per_slab);
      continue;
    }
    std::byte* to = row_address(kept, geometry_, static_cast<std::int32_t>(next_row));
    CAIRN_TRY(queue.copy(to, row_address(row), geometry_.row_bytes(), CopyKind::kDeviceToDevice));
    row = static_cast<std::int32_t>(next_row++);
  }
  CAIRN_TRY(queue.synchronize());
  CAIRN_TRY(swap_slabs(queue, kept));
  kept.clear();
  CAIRN_TRY(queue.copy(index_.data(), host_index_.data(), geometry_.index_bytes(), CopyKind::kHostToDevice));
  CAIRN_TRY(write_control(queue, next_row, frozen));
  epoch_base_ = next_row - private_live;
  for (std::shared_ptr<Slab>& slab : left) drop_slab(std::move(slab));
  return {};
}

// ---------------------------------------------------------------- forks and checkpoints

/// Every row in use is frozen from now on. rows_bound_ is exact.
Status SlotTable::freeze(Queue& queue) {
  CAIRN_TRY(write_control(queue, rows_bound_, rows_bound_));
  epoch_base_ = rows_bound_;
  was_frozen_ = true;
  return {};
}

Result<std::unique_ptr<SlotTable>> SlotTable::fork(Queue& queue) {
  CAIRN_TRY(read_control(queue));
  std::unique_ptr<SlotTable> table(new SlotTable(device_, geometry_));
  const QueueDrain drain(queue);
  CAIRN_TRY(table->allocate_arrays());
  CAIRN_TRY(queue.copy(table->index_.data(), index_.data(), geometry_.index_bytes(), CopyKind::kDeviceToDevice));
  // The last shared slab may have free rows: they are this table's. The fork goes on in a slab of its own.
  SlabList shared(slabs_.begin(), slabs_.begin() + slabs_for(rows_bound_));
  CAIRN_TRY(table->swap_slabs(queue, shared));
  table->rows_bound_ = table->capacity_rows();
  CAIRN_TRY(table->freeze(queue));
  CAIRN_TRY(freeze(queue));
  return table;
}

Status SlotTable::prepare(SlotTableImage& image) const {
  if (!image.index) {
    CAIRN_TRY_ASSIGN(image.index, device_->allocate(geometry_.index_bytes()));
    image.index.zero_on_release();
  }
  image.slabs.reserve(slabs_.size());
  return {};
}

Status SlotTable::capture(Queue& queue, SlotTableImage& image) {
  const std::int64_t reserved_rows = rows_bound_;  // the call that reserved them may still take them
  CAIRN_TRY(read_control(queue));
  CAIRN_TRY(queue.copy(image.index.data(), index_.data(), geometry_.index_bytes(), CopyKind::kDeviceToDevice));
  image.rows_in_use = static_cast<std::int32_t>(rows_bound_);
  image.slabs.assign(slabs_.begin(), slabs_.begin() + slabs_for(rows_bound_));
  was_captured_ = true;
  CAIRN_TRY(freeze(queue));
  rows_bound_ = reserved_rows;
  return {};
}

Status SlotTable::prepare_restore(Queue& queue, const SlotTableImage& image) {
  other_slabs_.reserve(image.slabs.size());
  return reserve_pointers(queue, image.slabs.size());
}

Status SlotTable::restore(Queue& queue, const SlotTableImage& image) {
  CAIRN_TRY(queue.synchronize());
  CAIRN_TRY(prepare_restore(queue, image));
  other_slabs_ = image.slabs;
  CAIRN_TRY(swap_slabs(queue, other_slabs_));
  CAIRN_TRY(queue.copy(index_.data(), image.index.data(), geometry_.index_bytes(), CopyKind::kDeviceToDevice));
  rows_bound_ = capacity_rows();  // rows after the image's in its last slab belong to what came later
  CAIRN_TRY(freeze(queue));
  for (std::shared_ptr<Slab>& slab : other_slabs_) drop_slab(std::move(slab));
  other_slabs_.clear();
  return {};
}

void SlotTable::recycle(SlotTableImage& image) noexcept {
  for (std::shared_ptr<Slab>& slab : image.slabs) drop_slab(std::move(slab));
  image.slabs.clear();
  image.rows_in_use = 0;
}

// ---------------------------------------------------------------- whole contents

Status SlotTable::reset(Queue& queue) {
  CAIRN_TRY(queue.synchronize());
  std::erase_if(slabs_, [](const std::shared_ptr<Slab>& slab) { return !is_private(slab); });
  for (const SlabList* list : {&slabs_, &spare_}) {
    for (const std::shared_ptr<Slab>& slab : *list) CAIRN_TRY(queue.zero(slab->data(), slab->size_bytes()));
  }
  CAIRN_TRY(fill_index(queue));
  CAIRN_TRY(write_slab_pointers(queue));
  CAIRN_TRY(write_control(queue, 0, 0));
  epoch_base_ = rows_at_last_look_ = 0;
  was_frozen_ = false;
  return {};
}

Status SlotTable::read_index(Queue& queue, std::vector<std::int32_t>& row_of_slot) const {
  row_of_slot.resize(static_cast<std::size_t>(geometry_.slot_count));
  CAIRN_TRY(queue.copy(row_of_slot.data(), index_.data(), geometry_.index_bytes(), CopyKind::kDeviceToHost));
  return queue.synchronize();
}

Status SlotTable::assign_slots(Queue& queue, const std::vector<std::int32_t>& slots) {
  const auto count = static_cast<std::int64_t>(slots.size());
  if (count > capacity_rows()) CAIRN_TRY(grow(queue, count));
  host_index_.assign(static_cast<std::size_t>(geometry_.slot_count), -1);
  for (std::size_t i = 0; i < slots.size(); ++i) host_index_[static_cast<std::size_t>(slots[i])] = static_cast<std::int32_t>(i);
  CAIRN_TRY(queue.copy(index_.data(), host_index_.data(), geometry_.index_bytes(), CopyKind::kHostToDevice));
  CAIRN_TRY(write_control(queue, count, 0));
  epoch_base_ = 0;
  return {};
}

}  // namespace cairn
