// SPDX-License-Identifier: Apache-2.0
// A selector of pairs needs a merger that merges two given entries.
// expect: MostSimilarPair: the merger must have norms(column) and merge(
#include <tersekv/tersekv.hpp>

#ifdef TERSEKV_FIXED
using Merger = tersekv::ZipMerge;
#else
using Merger = tersekv::Drop;
#endif

using Chosen = tersekv::Policy<tersekv::PredictedMass, tersekv::MostSimilarPair, Merger>;
void use(tersekv::KVCache<Chosen>& cache) { cache.compress(0); }
