// SPDX-License-Identifier: Apache-2.0
// ZipMerge predicts with PredictedMass; another scorer is no use to it.
// expect: the third template argument must satisfy tersekv::MergerPart
#include <tersekv/tersekv.hpp>

#ifdef TERSEKV_FIXED
using Scorer = tersekv::PredictedMass;
#else
using Scorer = tersekv::LatestAttention;
#endif

using Chosen = tersekv::Policy<Scorer, tersekv::LowestScore, tersekv::ZipMerge>;
void use(tersekv::KVCache<Chosen>& cache) { cache.clear(); }
