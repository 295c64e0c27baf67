// A tensor: a shared buffer and a view of it, with what autograd needs to know. Tensors are passed as TensorPtr.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/tensor/device.h"
#include "kernels/error.h"

namespace qeng {

struct Tensor;
struct Expression;    // engine/autograd/expression.h
class WeightLearner;  // engine/autograd/learner.h
using TensorPtr = std::shared_ptr<Tensor>;
using Shape = std::vector<int64_t>;

struct Tensor {
  std::shared_ptr<Buffer> buffer;
  View view;
  std::string label;

  bool requires_grad = false;              // a parameter: its gradient is kept and added to
  bool reached = false;                    // a parameter whose gradient a backward pass has written to
  bool frozen = false;                     // a parameter that counts as none (Tape::Frozen)
  uint64_t tracked = 0;                    // computed from one that requires a gradient, in this part of the tape
  std::shared_ptr<WeightLearner> learner;  // of a linear layer's weight: takes its gradient, where it keeps none
  TensorPtr grad;  // parameter: f32, zero at first. Otherwise: only during backward, in this tensor's dtype

  // What computes it, where nothing has read it yet: then there is no buffer, and the view has no data
  // (engine/autograd/expression.h). Functions of the engine are given tensors that are computed.
  std::shared_ptr<const Expression> pending;
  Device* pending_on = nullptr;

  bool needs_grad() const { return (requires_grad && !frozen) || tracked; }
  Device& device() const { return buffer ? *buffer->device : *pending_on; }
};

// A tensor without memory yet, or another one of `from`'s. What a captured function may leave behind is made by this:
// its program gives that its memory at the end, and has to know who shows it.
TensorPtr new_tensor(Device& device, Tensor from = {});
// Uninitialised, its rows in order. Error("shape") for a rank over kMaxRank, a negative size, or rows that are not
// whole blocks of the dtype.
TensorPtr make_tensor(Device& device, const Shape& shape, DType dtype, const std::string& account = "activations");
inline TensorPtr make_like(const Tensor& other, const std::string& account = "activations") {
  return make_tensor(other.device(), Shape(other.view.shape, other.view.shape + other.view.rank), other.view.dtype,
                     account);
}
TensorPtr make_zeros(Device& device, const Shape& shape, DType dtype, const std::string& account = "activations");
// A tensor of host values; while a program is captured, a constant of it.
TensorPtr make_constant(Device& device, const Shape& shape, DType dtype, const std::vector<double>& values);
// A tensor over memory that owner keeps alive.
TensorPtr adopt_tensor(Device& device, void* data, const Shape& shape, DType dtype, const std::string& account,
                       std::shared_ptr<void> owner);

// The same memory, another shape; rows first .. first + count of the leading dimension.
TensorPtr reshape_view(const TensorPtr& x, const Shape& shape);
TensorPtr row_range(const TensorPtr& x, int64_t first, int64_t count);
// The same memory as bytes, u8 [rows, bytes of a row].
TensorPtr byte_view(const TensorPtr& x);

// The bytes of x as a file has them, its rows in order, to and from the host's memory; blocking. Where x is streamed,
// those that a next pass reads. Refused while capturing: a captured program has no values yet.
void read_bytes(const Tensor& x, void* host);
void write_bytes(Tensor& x, const void* host);
// Host copies, converting; blocking; refused likewise.
std::vector<float> to_host_f32(const Tensor& x);
std::vector<double> to_host(const Tensor& x);  // any dtype
// Error("value") for a number that a dtype of integers does not hold.
void from_host(Tensor& x, const double* values, size_t count);
void from_host_i32(Tensor& x, const int32_t* values, size_t count);
// Converts the dtype where they differ (to integers without the fraction; Error("value") beyond their range), decodes
// blocks, keeps destination's order of rows; from any device.
void copy_into(Tensor& destination, const Tensor& source);
// An operation; its value as from_host takes it, of 24 bits.
void fill(Tensor& x, double value);

// A copy of matrix w in the float dtype whose rows first .. first + count are the mean of the rows before them: an
// embedding with so many new tokens. It has more rows than w where those reach beyond; rows after them stay as they
// are.
TensorPtr with_new_rows(const TensorPtr& w, int64_t first, int64_t count, DType dtype, const std::string& account);

// Fills with normal(0, std) or uniform[low, high) numbers of Philox(seed, subsequence): the same everywhere.
void fill_normal(Tensor& x, double std_dev, uint64_t seed, uint64_t subsequence);
void fill_uniform(Tensor& x, double low, double high, uint64_t seed, uint64_t subsequence);
// one_bit: fair signs. Word i is word i % 4 of draw i / 4.
void fill_signs(Tensor& x, uint64_t seed, uint64_t subsequence);

// Error("unsupported") for a streamed weight.
void require_writable(const Tensor& x, const char* doing);

inline bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

// Allocates the zeroed gradient, or drops it. Error("dtype") for blocks and integers. gradient: f32, or bf16 for a bf16
// matrix that linear layers alone read, whose products are then added to it in bf16. Not while gradients flow through x
// (Tape::flows).
void set_requires_grad(const TensorPtr& x, bool on, DType gradient = DType::f32);

}  // namespace qeng
