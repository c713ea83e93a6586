// SPDX-License-Identifier: Apache-2.0
// What runs no tasks of a call is refused with the concept's name and what it lacks.
// expect: the last template argument must satisfy tersekv::TaskExecutor
// expect: int workers() const
#include <tersekv/tersekv.hpp>

struct Pool {
#ifdef TERSEKV_FIXED
  int workers() const { return 1; }
#endif
  template <class F>
  void run(tersekv::Index n, F&& f) const {
    for (tersekv::Index task = 0; task < n; ++task) f(task, 0);
  }
};

void use(tersekv::KVCache<tersekv::Full, float, float, Pool>& cache) { cache.clear(); }
