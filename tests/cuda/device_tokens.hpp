// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cuda/runtime_under_test.hpp"
#include "support/random.hpp"

namespace on_device {

/// Random new tokens of type T in device memory, and a place for what attention makes of them.
template <class T>
class TokensOf {
 public:
  struct Rows {
    std::vector<float> q, k, v, scores;
  };

  TokensOf(support::Random& random, Index count, Index heads, Index group, Index dim)
      : TokensOf(
            Rows{random.normals(count * heads * group * dim), random.normals(count * heads * dim),
                 random.normals(count * heads * dim), random.normals(count * heads)},
            count, heads, group, dim) {}

  /// Tokens [first, first + count) by themselves.
  TokensOf rows(Index first, Index count) const {
    const auto part = [&](const std::vector<float>& all, Index width) {
      return std::vector<float>(all.begin() + first * width, all.begin() + (first + count) * width);
    };
    return TokensOf({part(rows_.q, heads_ * group_ * dim_), part(rows_.k, heads_ * dim_),
                     part(rows_.v, heads_ * dim_), part(rows_.scores, heads_)},
                    count, heads_, group_, dim_);
  }
  /// Scores f(token, head) instead of random ones.
  template <class F>
  void score(F&& f) {
    for (Index t = 0; t < count_; ++t) {
      for (Index h = 0; h < heads_; ++h) {
        rows_.scores[static_cast<std::size_t>(t * heads_ + h)] = f(t, h);
      }
    }
    scores_ = Array<float>(rows_.scores);
  }

  tersekv::cuda::Batch<T> batch(tersekv::cuda::Sequences sequences) const {
    const auto view = [&](const Array<T>& from, Index heads) {
      const T* data = from.data();
      return tersekv::nhd_view(data, count_, heads, dim_);
    };
    tersekv::cuda::Batch<T> b(sequences, view(q_, heads_ * group_), view(k_, heads_),
                              view(v_, heads_),
                              tersekv::nhd_view(out_.data(), count_, heads_ * group_, dim_));
    b.token_scores = {scores_.data(), heads_};
    return b;
  }
  std::vector<float> out() const {
    std::vector<float> all;
    for (const T x : out_.host()) all.push_back(tersekv::to_float(x));
    return all;
  }
  const Rows& host_rows() const { return rows_; }

 private:
  TokensOf(Rows rows, Index count, Index heads, Index group, Index dim)
      : rows_(std::move(rows)),
        count_(count),
        heads_(heads),
        group_(group),
        dim_(dim),
        q_(narrowed(rows_.q)),
        k_(narrowed(rows_.k)),
        v_(narrowed(rows_.v)),
        scores_(rows_.scores),
        out_(count * heads * group * dim, tersekv::from_float<T>(-7.0f)) {}

  static std::vector<T> narrowed(const std::vector<float>& from) {
    std::vector<T> to;
    for (float x : from) to.push_back(tersekv::from_float<T>(x));
    return to;
  }

  Rows rows_;
  Index count_, heads_, group_, dim_;
  Array<T> q_, k_, v_;
  Array<float> scores_;
  Array<T> out_;
};
using Tokens = TokensOf<float>;

}  // namespace on_device
