// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#if defined(TERSEKV_PEERS_EIGEN)
#include <Eigen/Core>

double tersekv::peers::product_seconds(Index size, int threads) {
  Eigen::setNbThreads(threads);
  const Eigen::MatrixXf a = Eigen::MatrixXf::Random(size, size);
  const Eigen::MatrixXf b = Eigen::MatrixXf::Random(size, size);
  Eigen::MatrixXf c = Eigen::MatrixXf::Zero(size, size);
  c.noalias() += a * b;
  const double seconds = bench::seconds_of([&] { c.noalias() += a * b; });
  asm volatile("" : : "r"(c.data()) : "memory");
  return seconds;
}
#else
double tersekv::peers::product_seconds(Index, int) { return -1; }
#endif
