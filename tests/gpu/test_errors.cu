// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "cuda/runtime_under_test.hpp"

// What only a device has: a runtime that can say no.

namespace {

struct NoBody {
  struct Args {};
  static constexpr int kThreads = 32;
  static constexpr std::size_t kSharedBytes = 0;
  template <class Context>
  static TERSEKV_HD void run(const Context&, const Args&) {}
};

}  // namespace

// Not among the small ones: a tool that reports failed calls would report these.
TEST_CASE("errors: a launch or an allocation that fails throws where it was made") {
  on_device::require_device();
  using tersekv::cuda::CudaRuntime;
  CHECK_THROWS_AS(CudaRuntime::allocate(std::size_t{1} << 60), tersekv::cuda::OutOfMemory);
  CHECK_THROWS_AS(CudaRuntime::launch<NoBody>({1, 100000, 1}, 1, nullptr, {}, {}),
                  tersekv::cuda::Error);
  CudaRuntime::launch<NoBody>({}, 1, nullptr, {}, {});  // and is forgotten
  CudaRuntime::synchronize({});
}
