#include "engine/tensor/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/interleave.h"
#include "kernels/math/bf16.h"
#include "kernels/math/philox.h"
#include "kernels/parallel.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

View view_of(void* data, const Shape& shape, DType dtype) {
  if (shape.size() > kMaxRank) fail("shape", "a tensor has at most ", kMaxRank, " dimensions, not ", shape.size());
  View view;
  view.data = data;
  view.dtype = dtype;
  for (int64_t dim : shape) {
    if (dim < 0 || (dim > 0 && view.elements() > (int64_t{1} << 46) / dim))
      fail("shape", "a dimension of ", dim, " is out of range");
    view.shape[view.rank++] = dim;
  }
  const int block = dtype_info(dtype).elements;
  if (view.columns() % block != 0) fail("shape", "rows of ", shape_text(view), " are not whole blocks of ", block);
  return view;
}

// Four words for draw number i of a subsequence, for initial values.
Philox draw(uint64_t seed, uint64_t subsequence, uint64_t i) {
  const Philox counter{{static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), static_cast<uint32_t>(subsequence),
                        static_cast<uint32_t>(subsequence >> 32)}};
  return philox4x32(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

void need_values(const Tensor& x) {
  if (x.device().capturing())
    fail("value",
         "a tensor's values do not exist while a program is captured: read them after run(), or do without capturing");
}

double element(const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::f32: return view.as<float>()[i];
    case DType::bf16: return to_f32(view.as<bf16>()[i]);
    case DType::f16: return to_f32(view.as<f16>()[i]);
    case DType::i32: return view.as<int32_t>()[i];
    case DType::i64: return static_cast<double>(view.as<int64_t>()[i]);
    case DType::u8: return view.as<uint8_t>()[i];
    default: fail("dtype", "a tensor of ", dtype_name(view.dtype), " has no single elements; cast it to f32 first");
  }
}

void set_element(const View& view, int64_t i, double value) {
  switch (view.dtype) {
    case DType::f32: view.as<float>()[i] = static_cast<float>(value); break;
    case DType::bf16: put(view.as<bf16>() + i, static_cast<float>(value)); break;
    case DType::f16: put(view.as<f16>() + i, static_cast<float>(value)); break;
    case DType::i32: view.as<int32_t>()[i] = static_cast<int32_t>(value); break;
    case DType::i64: view.as<int64_t>()[i] = static_cast<int64_t>(value); break;
    case DType::u8: view.as<uint8_t>()[i] = static_cast<uint8_t>(value); break;
    default: fail("dtype", "elements of ", dtype_name(view.dtype), " cannot be set; quantize a tensor of f32");
  }
}

// A host image of x: filled by `each(i)`, by several threads where there are many, then uploaded.
template <class Each>
void fill_from(Tensor& x, Each each) {
  need_values(x);
  std::vector<uint8_t> bytes(x.view.bytes());
  View image = x.view;
  image.data = bytes.data();
  if (image.elements() > 0) set_element(image, 0, each(0));  // refuses what has no elements, which threads may not
  constexpr int64_t kWorthAThread = 1 << 12;
  parallel_for(available_threads(), image.elements(), kWorthAThread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) set_element(image, i, each(i));
  });
  write_bytes(x, bytes.data());
}

// Where x's values are in the host's memory, which nothing that is queued uses any more; null where they are the
// device's.
void* home_of(const Tensor& x) {
  if (!x.buffer->home) return nullptr;
  x.device().backend().synchronize();
  char *home = static_cast<char*>(x.buffer->home), *data = static_cast<char*>(x.view.data);
  return data >= home && data < home + x.buffer->bytes ? data : home + (data - static_cast<char*>(x.buffer->data));
}

}  // namespace

TensorPtr new_tensor(Device& device, Tensor from) {
  auto tensor = std::make_shared<Tensor>(std::move(from));
  if (device.capturing()) device.captured()->tensors.push_back(tensor);
  return tensor;
}

TensorPtr make_tensor(Device& device, const Shape& shape, DType dtype, const std::string& account) {
  TensorPtr tensor = new_tensor(device);
  tensor->view = view_of(nullptr, shape, dtype);
  tensor->buffer = device.allocate(tensor->view.bytes(), account);
  tensor->view.data = tensor->buffer->data;
  return tensor;
}

TensorPtr make_zeros(Device& device, const Shape& shape, DType dtype, const std::string& account) {
  TensorPtr tensor = make_tensor(device, shape, dtype, account);
  if (tensor->view.elements()) device.run(Fill{tensor->view, 0});
  return tensor;
}

TensorPtr make_constant(Device& device, const Shape& shape, DType dtype, const std::vector<double>& values) {
  Device::Outside now(device);
  TensorPtr tensor = make_tensor(device, shape, dtype);
  from_host(*tensor, values.data(), values.size());
  if (now.captured) {
    tensor->buffer->constant = true;
    now.captured->buffers.push_back(tensor->buffer);
  }
  return tensor;
}

TensorPtr adopt_tensor(Device& device, void* data, const Shape& shape, DType dtype, const std::string& account,
                       std::shared_ptr<void> owner) {
  TensorPtr tensor = new_tensor(device);
  tensor->view = view_of(data, shape, dtype);
  tensor->buffer = device.adopt(data, tensor->view.bytes(), account, std::move(owner));
  return tensor;
}

TensorPtr reshape_view(const TensorPtr& x, const Shape& shape) {
  TensorPtr tensor = new_tensor(x->device());
  tensor->buffer = x->buffer;
  tensor->view = view_of(x->view.data, shape, x->view.dtype);
  tensor->view.interleaved = x->view.interleaved;
  if (tensor->view.elements() != x->view.elements())
    fail("shape", "reshape of ", shape_text(x->view), " to ", shape_text(tensor->view),
         " changes the number of elements");
  if (x->view.interleaved && !tensor->view.same_shape(x->view))
    fail("dtype", "reshape of ", shape_text(x->view), ", whose rows lie in groups: decode it first, with :to('f32')");
  return tensor;
}

TensorPtr row_range(const TensorPtr& x, int64_t first, int64_t count) {
  if (x->view.rank < 1) fail("shape", "rows of a tensor without dimensions");
  const int64_t rows = x->view.shape[0];
  if (first < 0 || count < 0 || first > rows - count)
    fail("shape", "rows ", first, " .. ", first + count, " of ", shape_text(x->view), " are out of range");
  if (x->view.interleaved && (first % kInterleavedRows || count % kInterleavedRows))
    fail("dtype", "rows ", first, " .. ", first + count, " of ", shape_text(x->view), ", which lies in groups of ",
         kInterleavedRows, " rows: decode it first, with :to('f32')");
  TensorPtr tensor = new_tensor(x->device());
  tensor->buffer = x->buffer;
  tensor->view = x->view;
  const size_t row_bytes = rows ? x->view.bytes() / static_cast<size_t>(rows) : 0;
  tensor->view.data = static_cast<char*>(x->view.data) + static_cast<size_t>(first) * row_bytes;
  tensor->view.shape[0] = count;
  return tensor;
}

TensorPtr byte_view(const TensorPtr& x) {
  if (x->view.rank < 1 || x->view.interleaved)
    fail("shape", "bytes of ", shape_text(x->view), ", which has no rows in order");
  const int64_t rows = x->view.shape[0];
  TensorPtr tensor = new_tensor(x->device());
  tensor->buffer = x->buffer;
  tensor->view = view_of(x->view.data, {rows, rows ? static_cast<int64_t>(x->view.bytes()) / rows : 0}, DType::u8);
  return tensor;
}

void read_bytes(const Tensor& x, void* host) {
  need_values(x);
  if (!x.view.bytes()) return;
  const void* home = home_of(x);
  if (!home) x.device().check_reach(x.view);
  if (x.view.interleaved)
    restore(x.view, host);
  else if (home)
    std::memcpy(host, home, x.view.bytes());
  else
    x.device().backend().download(host, x.view.data, x.view.bytes());
}

void write_bytes(Tensor& x, const void* host) {
  need_values(x);
  if (!x.view.bytes()) return;
  x.device().before_write(&x.view);
  void* home = home_of(x);
  if (!home) x.device().check_reach(x.view);
  if (home)
    std::memcpy(home, host, x.view.bytes());
  else
    x.device().backend().upload(x.view.data, host, x.view.bytes());
  if (!x.view.interleaved) return;
  View in_order = x.view;
  in_order.interleaved = false;
  interleave(in_order, available_threads());
}

namespace {

// x's values through get(image, values), image being x in host memory.
template <class T, class Get>
std::vector<T> downloaded(const Tensor& x, Get get) {
  std::vector<uint16_t> memory((x.view.bytes() + 1) / 2);  // blocks need two bytes' alignment, which is more than u8's
  View image = x.view;
  image.data = memory.data(), image.interleaved = false;
  read_bytes(x, image.data);
  std::vector<T> values(static_cast<size_t>(x.view.elements()));
  get(image, values);
  return values;
}

}  // namespace

std::vector<double> to_host(const Tensor& x) {
  if (is_block(x.view.dtype)) {
    const std::vector<float> values = to_host_f32(x);
    return {values.begin(), values.end()};
  }
  return downloaded<double>(x, [](const View& image, std::vector<double>& values) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = element(image, static_cast<int64_t>(i));
  });
}

std::vector<float> to_host_f32(const Tensor& x) {
  const DType dtype = x.view.dtype;
  if (dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8) {
    const std::vector<double> values = to_host(x);
    return {values.begin(), values.end()};
  }
  return downloaded<float>(x, [](const View& image, std::vector<float>& values) {
    const int64_t columns = image.columns();
    const size_t row_bytes = dtype_bytes(image.dtype, columns);
    for (int64_t r = 0; r < image.rows(); ++r)
      decode_row(image.dtype, image.as<char>() + static_cast<size_t>(r) * row_bytes, 0, columns,
                 values.data() + r * columns);
  });
}

namespace {

void require_holds(DType dtype, const double* values, size_t count) {
  double low = 0, past = 256;
  const char* range = "0 to 255";
  switch (dtype) {
    case DType::u8: break;
    case DType::i32: low = -0x1p31, past = 0x1p31, range = "-2^31 to 2^31 - 1"; break;
    case DType::i64: low = -0x1p63, past = 0x1p63, range = "-2^63 to 2^63 - 1"; break;
    default: return;
  }
  for (size_t i = 0; i < count; ++i)
    if (!(values[i] >= low && values[i] < past && values[i] == std::floor(values[i])))
      fail("value", values[i], " is no value of ", dtype_name(dtype), ", which holds integers from ", range,
           ": take a dtype that holds it (f32 has fractions), or round and bound the values before");
}

}  // namespace

void from_host(Tensor& x, const double* values, size_t count) {
  if (count != static_cast<size_t>(x.view.elements())) fail("shape", count, " values for ", shape_text(x.view));
  require_holds(x.view.dtype, values, count);
  fill_from(x, [&](int64_t i) { return values[i]; });
}

void from_host_i32(Tensor& x, const int32_t* values, size_t count) {
  need_values(x);
  if (x.view.dtype != DType::i32 || count != static_cast<size_t>(x.view.elements()))
    fail("shape", count, " i32 values for ", shape_text(x.view));
  x.device().before_write(&x.view);
  if (count) x.device().backend().upload(x.view.data, values, count * sizeof(int32_t));
}

void fill(Tensor& x, double value) {
  require_holds(x.view.dtype, &value, 1);
  const auto rounded = static_cast<float>(value);
  const bool integers = x.view.dtype == DType::i32 || x.view.dtype == DType::i64;
  if (integers && rounded != value)
    fail("value", "fill takes integers of 24 bits, and ", static_cast<int64_t>(value),
         " has more: copy a tensor of it, made by q.tensor");
  if (x.view.elements()) x.device().run(Fill{x.view, rounded});
}

void copy_into(Tensor& destination, const Tensor& source) {
  if (destination.view.elements() != source.view.elements())
    fail("shape", "copy of ", shape_text(source.view), " into ", shape_text(destination.view));
  if (!source.view.elements()) return;
  Device& device = destination.device();
  const auto is_float = [](DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; };
  const bool same_dtype = destination.view.dtype == source.view.dtype;
  const bool near = &source.device() == &device, streamed = near && (destination.buffer->home || source.buffer->home);
  if (!near && !same_dtype) {
    const TensorPtr copy =
        make_tensor(device, Shape(source.view.shape, source.view.shape + source.view.rank), source.view.dtype);
    copy_into(*copy, source);
    copy_into(destination, *copy);
  } else if (streamed && !same_dtype) {
    fail("dtype", "copy of ", shape_text(source.view), " into ", shape_text(destination.view),
         ", one of which is streamed: a copy of the same dtype is needed");
  } else if (!near || streamed || (same_dtype && (destination.view.interleaved || source.view.interleaved))) {
    std::vector<char> bytes(source.view.bytes());
    read_bytes(source, bytes.data());
    write_bytes(destination, bytes.data());
  } else if (same_dtype) {
    device.run(Copy{source.view, destination.view});
  } else if (is_float(destination.view.dtype) && (is_float(source.view.dtype) || is_block(source.view.dtype))) {
    device.run(Cast{source.view, destination.view});
  } else if (is_block(destination.view.dtype)) {
    fail("dtype", "copy of ", shape_text(source.view), " into ", shape_text(destination.view),
         "; q.quantize packs weights into blocks");
  } else {
    std::vector<double> values = to_host(source);
    for (double& value : values) value = std::trunc(value);  // one of the dtypes is of integers
    from_host(destination, values.data(), values.size());
  }
}

void fill_normal(Tensor& x, double std_dev, uint64_t seed, uint64_t subsequence) {
  if (!x.device().backend().computes()) return;
  constexpr double kTwoPi = 6.283185307179586;
  fill_from(x, [&](int64_t i) {  // Box-Muller; element i takes the cosine or sine of draw i / 2
    const Philox drawn = draw(seed, subsequence, static_cast<uint64_t>(i / 2));
    const double u = (drawn.word[0] + 1.0) / 4294967296.0, angle = kTwoPi * drawn.word[1] / 4294967296.0;
    return std_dev * std::sqrt(-2 * std::log(u)) * (i % 2 ? std::sin(angle) : std::cos(angle));
  });
}

void fill_uniform(Tensor& x, double low, double high, uint64_t seed, uint64_t subsequence) {
  if (!x.device().backend().computes()) return;
  fill_from(x, [&](int64_t i) {
    return low + (high - low) * draw(seed, subsequence, static_cast<uint64_t>(i)).word[0] / 4294967296.0;
  });
}

void fill_signs(Tensor& x, uint64_t seed, uint64_t subsequence) {
  if (x.view.dtype != DType::one_bit || x.view.rank < 1)
    fail("dtype", "random signs: ", shape_text(x.view), ", expected one_bit rows");
  if (!x.device().backend().computes()) return;
  const int64_t rows = x.view.shape[0];
  if (rows == 0) return;
  const size_t row_words = x.view.bytes() / sizeof(uint32_t) / static_cast<size_t>(rows);
  const int64_t some = std::max<int64_t>(
      1, static_cast<int64_t>((size_t{1} << 20) / std::max<size_t>(row_words, 1)));  // 4 MB of the host's
  std::vector<uint32_t> words;
  Tensor part = x;
  for (int64_t first = 0; first < rows; first += some) {
    const int64_t count = std::min(some, rows - first);
    words.resize(static_cast<size_t>(count) * row_words);
    const auto begin = static_cast<uint64_t>(first) * row_words;
    Philox drawn{};
    for (size_t i = 0; i < words.size(); ++i) {
      const uint64_t word = begin + i;
      if (i == 0 || word % 4 == 0) drawn = draw(seed, subsequence, word / 4);
      words[i] = drawn.word[word % 4];
    }
    part.view.data = static_cast<uint32_t*>(x.view.data) + begin;
    part.view.shape[0] = count;
    write_bytes(part, words.data());
  }
}

void require_writable(const Tensor& x, const char* doing) {
  if (x.buffer->read_only)
    fail(
        "unsupported", doing, ": ", x.label.empty() ? "this tensor" : x.label,
        " is a weight that is streamed, whose memory is the file's; load the model with weights = \"copy\" or \"map\"");
}

void set_requires_grad(const TensorPtr& x, bool on, DType gradient) {
  if (on) require_writable(*x, "requires_grad");
  if (on && is_block(x->view.dtype))
    fail("dtype", "requires_grad: ", shape_text(x->view), x->label.empty() ? "" : " " + x->label,
         " is stored in blocks, which are only read; train an adapter on it, or decode it first, with :to('bf16')");
  if (on && !is_float(x->view.dtype))
    fail("dtype", "requires_grad: ", shape_text(x->view), x->label.empty() ? "" : " " + x->label,
         " has integers, through which no gradient flows; make it of floats, with :to('f32')");
  if (on && gradient != DType::f32 && (gradient != DType::bf16 || x->view.dtype != DType::bf16 || x->view.rank != 2))
    fail("dtype", "requires_grad: a gradient in ", dtype_name(gradient), " of ", shape_text(x->view),
         x->label.empty() ? "" : " " + x->label, "; it may be f32, or bf16 of a bf16 matrix");
  x->requires_grad = on, x->reached = false;
  if (on) x->tracked = 0;
  if (!on)
    x->grad.reset();
  else if (!x->grad || x->grad->view.dtype != gradient)
    x->grad = make_zeros(x->device(), Shape(x->view.shape, x->view.shape + x->view.rank), gradient, "gradients");
}

}  // namespace qeng
