// A sheet holds an op's operands in float64 (or Real): inputs decoded from the views' memory, outputs as a reference
// computes them. Arrays are keyed by the memory that a view shows, so an op in place reads its old input.
#pragma once
#include <map>
#include <stdexcept>
#include <vector>

#include "kernels/op.h"
#include "tests/conformance/real.h"

namespace qeng::conformance {

// What element i of a view holds; and `value` rounded to dtype (nearest, ties to even), written without the backend's
// code.
double decode(const View& view, int64_t i);
double round_to(DType dtype, double value);
void encode(const View& view, int64_t i, double value);
double unit_roundoff(DType dtype);  // 2^-24 for f32, 2^-8 for bf16, 2^-11 for f16

// A sum of two numbers of a dtype as a backend keeps it before it goes on: f32 or narrower, it is rounded but once.
inline double stored_sum(double a, double b, DType) { return a + b; }
inline Real stored_sum(Real a, Real b, DType dtype) { return round_to(dtype, a.value + b.value); }

template <class T>
struct Array {
  std::vector<int64_t> shape;
  std::vector<T> values;

  Array() = default;
  explicit Array(const View& view)
      : shape(view.shape, view.shape + view.rank), values(static_cast<size_t>(view.elements())) {}
  int64_t size() const { return static_cast<int64_t>(values.size()); }
  T& operator[](int64_t i) { return values.at(static_cast<size_t>(i)); }
  const T& operator[](int64_t i) const { return values.at(static_cast<size_t>(i)); }
  T& operator()(int64_t i, int64_t j) { return (*this)[i * shape.back() + j]; }
  const T& operator()(int64_t i, int64_t j) const { return (*this)[i * shape.back() + j]; }
  T& operator()(int64_t i, int64_t j, int64_t k) { return (*this)[(i * shape[1] + j) * shape[2] + k]; }
  const T& operator()(int64_t i, int64_t j, int64_t k) const { return (*this)[(i * shape[1] + j) * shape[2] + k]; }
};

template <class T>
struct Sheet {
  enum class Check { bounded, exact, scratch };  // scratch: the op says nothing of what is left there
  struct Result {
    Array<T> array;
    Check check = Check::bounded;
  };
  std::map<const void*, Array<T>> given;  // overrides what memory holds (finite differences, exact saved values)
  std::map<const void*, Result> results;

  Array<T> in(const View& view) const {
    if (auto it = given.find(view.data); it != given.end()) return it->second;
    Array<T> array(view);
    for (int64_t i = 0; i < array.size(); ++i) array[i] = T(decode(view, i));
    return array;
  }
  std::vector<int64_t> integers(const View& view) const {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < view.elements(); ++i) values.push_back(static_cast<int64_t>(decode(view, i)));
    return values;
  }
  // An output, all zeros; update: what the memory holds, when `accumulate` says so.
  Array<T>& out(const View& view, Check check = Check::bounded) {
    return (results[view.data] = {Array<T>(view), check}).array;
  }
  Array<T>& update(const View& view, bool accumulate = true, Check check = Check::bounded) {
    Array<T>& array = out(view, check);
    if (accumulate) array = in(view);
    return array;
  }
  void scratch(const View& view) { out(view, Check::scratch); }
};

}  // namespace qeng::conformance
