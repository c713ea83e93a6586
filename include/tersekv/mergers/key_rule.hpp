// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tersekv/c_math.hpp"
#include "tersekv/log_math.hpp"
#include "tersekv/portability.hpp"
#include "tersekv/scorers/predicted_mass.hpp"

namespace tersekv {

/// What becomes of the key in a ZIP merge of entry e into c, given the shares pi of the two:
///
///   mean:         k = pi_e k_e + pi_c k_c
///   scale:        k = mean * tau / (pi_e l_e + pi_c l_c); near a zero denominator (k_e + k_c) / 2
///   along_query:  k = mean - q KL(pi || p/P) / (scale |q|^2); no correction for a zero query
///
/// with votes p, P = p_e + p_c, predicted log-scores l, tau = ln(p_e exp(l_e) + p_c exp(l_c)) - ln
/// P. `scale` is the paper's, whose denominator, where it should be zero, may be rounding, as may
/// then the key; `along_query` is the smallest change of the mean that makes one query head's logit
/// tau, and none where KL is what rounding may leave of 0. Where several query heads share the
/// entry, l is the mean of their predicted log-scores and q the mean of the latest queries.
enum class KeyRule { mean, scale, along_query };

namespace detail {

/// k = share_e k_e + share_c k_c - along_query q.
struct MergedKey {
  float share_e, share_c, along_query = 0.0f;
};

template <class Head>
TERSEKV_HD MergedKey merged_key(KeyRule rule, const Head& head, const PredictedMass& scorer,
                                Index victim, Index target, float share_e, float share_c) {
  const float p_e = head.weight(victim), p_c = head.weight(target), total = p_e + p_c;
  if (rule == KeyRule::scale) {
    const Index group = head.shape().group_size;
    float l_e = 0, l_c = 0;
    for (Index g = 0; g < group; ++g) {
      l_e += scorer.log_score(head, victim, g) / static_cast<float>(group);
      l_c += scorer.log_score(head, target, g) / static_cast<float>(group);
    }
    const float tau = log_add(log(p_e) + l_e, log(p_c) + l_c) - log(total);
    const float mean = share_e * l_e + share_c * l_c;
    if (magnitude(mean) < 1e-6f * (1.0f + magnitude(tau))) return {0.5f, 0.5f};
    return {share_e * tau / mean, share_c * tau / mean};
  }
  if (rule == KeyRule::along_query) {
    float square = 0;
    for (Index j = 0; j < head.head_dim(); ++j) {
      square += scorer.mean_query(head, j) * scorer.mean_query(head, j);
    }
    const float divergence =
        relative_entropy(share_e, p_e / total) + relative_entropy(share_c, p_c / total);
    // A query too small to move a key along counts as zero, as does a divergence of rounding alone.
    const float norm = head.shape().scale * square;
    if (norm > 1e-30f && divergence > 3e-7f) return {share_e, share_c, divergence / norm};
  }
  return {share_e, share_c};
}

}  // namespace detail
}  // namespace tersekv
