// Cuts one block of memory into aligned arrays. Without a block it only counts, so that the code which takes the
// arrays also says how many bytes it needs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dspark {

class Arena {
 public:
  static constexpr size_t alignment = 64;

  explicit Arena(void* block) : base_(reinterpret_cast<uintptr_t>(block)) {
    if (block != nullptr) next_ = (base_ + alignment - 1) / alignment * alignment - base_;
  }

  template <typename T>
  T* take(int64_t count) {
    T* array = base_ == 0 ? nullptr : reinterpret_cast<T*>(base_ + next_);
    next_ += (static_cast<size_t>(count) * sizeof(T) + alignment - 1) / alignment * alignment;
    return array;
  }

  // Enough for everything taken so far, wherever the block starts.
  size_t bytes() const { return next_ + alignment; }

 private:
  uintptr_t base_;
  size_t next_ = 0;
};

}  // namespace dspark
