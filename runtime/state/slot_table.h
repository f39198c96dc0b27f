// One layer's slot table of one state: copy-on-write rows over the model's read-only M0.
//
// A fresh table is an index of -1s: every slot still equals M0. The operator gives a slot its own row when it first writes
// it (SdmTable in op_args.h). Rows live in slabs of equal size that forks and checkpoints share:
//
//   row_of_slot [H, N] ----> row r ----> slabs[r >> shift] + (r & mask) * V      f32 or bf16 elements
//   control[0] rows in use; rows below control[1] are frozen: shared, and copied to a new row before they are written
//
// The operator takes rows on the device, so the host knows only an upper bound of control[0]; reserve() reads the exact
// value when the bound says that rows may run out. Freezing (fork, checkpoint) makes later writes leave dead rows behind;
// reserve() reclaims them once they outnumber the live ones. Everything works by queue copies: device memory is not
// assumed to be host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/state/state_layout.h"

namespace cairn {

/// Rows of one size, shared by the tables and checkpoints that reach them. Zeroed before it is given back.
using Slab = DeviceBuffer;
using SlabList = std::vector<std::shared_ptr<Slab>>;

/// What a table held at a checkpoint. Reused: taking one again allocates nothing new.
struct SlotTableImage {
  DeviceBuffer index;              ///< row_of_slot then
  std::int32_t rows_in_use = 0;
  SlabList slabs;
};

class SlotTable {
 public:
  /// Geometry that follows from the slot alone, so that forks and images of a table fit together.
  struct Geometry {
    std::int32_t slot_count = 0;   ///< H * N
    std::int32_t value_dim = 0;
    DType row_dtype = DType::kF32;
    std::int32_t rows_per_slab = 1;
    std::int32_t writes_per_token = 0;  ///< W * H
    bool is_small = false;         ///< a whole private table is at most 8 MiB: reserved at the first write
    std::uint64_t row_bytes() const { return static_cast<std::uint64_t>(value_dim) * static_cast<std::uint64_t>(dtype_bits(row_dtype) / 8); }
    std::uint64_t slab_bytes() const { return row_bytes() * static_cast<std::uint64_t>(rows_per_slab); }
    std::uint64_t index_bytes() const { return static_cast<std::uint64_t>(slot_count) * sizeof(std::int32_t); }
  };
  static Geometry geometry(const StateSlot& slot);

  /// An empty table.
  static Result<std::unique_ptr<SlotTable>> create(std::shared_ptr<const Device> device, const StateSlot& slot, Queue& queue);

  /// Pointers for the operator, valid until the next call that is not const.
  SdmTable view() const;
  std::int32_t rows_per_slab() const { return geometry_.rows_per_slab; }
  const Geometry& geometry() const { return geometry_; }

  /// Rows for the next token_count tokens, with at most freeze_count freezes among them.
  Status reserve(Queue& queue, std::int64_t token_count, std::int64_t freeze_count);

  /// A table with the same contents; both copy rows before they write them from now on.
  Result<std::unique_ptr<SlotTable>> fork(Queue& queue);

  /// Memory of an image, so that capture() can no longer fail for want of it.
  Status prepare(SlotTableImage& image) const;
  /// Freezes the rows and records the table. The queue is synchronised first.
  Status capture(Queue& queue, SlotTableImage& image);
  /// Memory of a restore(), so that it can no longer fail for want of it.
  Status prepare_restore(Queue& queue, const SlotTableImage& image);
  /// Becomes what `image` recorded; the image stays good. Unchanged on failure for want of memory.
  Status restore(Queue& queue, const SlotTableImage& image);
  /// Takes the slabs that only the image holds for reuse.
  void recycle(SlotTableImage& image) noexcept;

  /// Every slot equals M0 again; memory is zeroed and kept. Takes none.
  Status reset(Queue& queue);

  /// Host copy of row_of_slot [H * N]; waits for the queue.
  Status read_index(Queue& queue, std::vector<std::int32_t>& row_of_slot) const;
  std::byte* row_address(std::int32_t row) const { return row_address(slabs_, geometry_, row); }
  static std::byte* row_address(const SlabList& slabs, const Geometry& geometry, std::int32_t row);

  /// Fills an empty table: slots[i] gets row i, whose contents the caller then copies to row_address(i).
  Status assign_slots(Queue& queue, const std::vector<std::int32_t>& slots);

  /// Memory of the index and the other arrays that this table alone holds.
  std::uint64_t array_bytes() const;
  /// Slabs, in use or spare, beyond a row for every slot: checkpoints and forks make a table hold more.
  std::uint64_t bytes_beyond_slots() const;
  /// Slabs in use, and those kept for reuse.
  const SlabList& slabs() const { return slabs_; }
  const SlabList& spare_slabs() const { return spare_; }

 private:
  SlotTable(std::shared_ptr<const Device> device, const Geometry& geometry);

  std::int64_t slabs_for(std::int64_t rows) const;
  std::int64_t capacity_rows() const { return static_cast<std::int64_t>(slabs_.size()) * geometry_.rows_per_slab; }
  std::int64_t bound_after(std::int64_t token_count, std::int64_t freeze_count) const;
  std::int64_t rows_wanted(std::int64_t rows_at_least) const;
  static bool is_private(const std::shared_ptr<Slab>& slab);

  Status allocate_arrays();
  Status fill_index(Queue& queue);
  Status read_control(Queue& queue);
  Status write_control(Queue& queue, std::int64_t rows_in_use, std::int64_t first_private);
  Status reserve_pointers(Queue& queue, std::size_t count);
  Status write_slab_pointers(Queue& queue);
  Status swap_slabs(Queue& queue, SlabList& slabs);
  Status freeze(Queue& queue);
  Status grow(Queue& queue, std::int64_t rows_at_least);
  bool may_have_dead_rows() const;
  Status reclaim_dead_rows(Queue& queue);
  Status compact(Queue& queue, const std::vector<std::int64_t>& live_rows);
  Result<std::shared_ptr<Slab>> take_slab();
  void drop_slab(std::shared_ptr<Slab> slab) noexcept;

  std::shared_ptr<const Device> device_;
  Geometry geometry_;
  DeviceBuffer index_, control_, slab_pointers_;
  SlabList slabs_, spare_;
  SlabList other_slabs_;          ///< empty but inside restore(), which trades it for slabs_
  std::int64_t rows_bound_ = 0;   ///< control[0] is at most this
  std::int64_t epoch_base_ = 0;   ///< and at most this + H * N: a slot takes one row between two freezes
  std::int64_t rows_at_last_look_ = 0;
  bool was_frozen_ = false;       ///< since dead rows were last looked for
  bool was_captured_ = false;     ///< checkpoints are taken: rows come and go
  std::vector<std::int32_t> host_index_;
  std::vector<void*> host_pointers_;  ///< what slab_pointers_ receives; always with room for slabs_
};

}  // namespace cairn
