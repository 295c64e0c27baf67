#include "engine/weights/weights.h"

#include <algorithm>

#include "engine/formats/gguf_rows.h"
#include "engine/formats/safetensors_dtype.h"
#include "engine/stream/pages.h"
#include "engine/stream/spilled_file.h"
#include "kernels/interleave.h"
#include "kernels/parallel.h"

namespace qeng {
namespace {

// What the elements' addresses have to be multiples of: those of a GPU are read by vectors of 16 bytes; on the host a
// block of GGUF's begins or ends with an f16.
size_t alignment_of(const Backend& backend, DType dtype) {
  return !backend.host_memory() ? 16 : is_packed_words(dtype) ? 4 : is_block(dtype) ? 2 : dtype_size(dtype);
}

// Writes the tensor as it is asked for but for the dtype: decoded, its rows in halves, or in order again where the host
// has interleaved them.
void unpack(const StoredTensor& stored, View view, int64_t heads, std::byte* to) {
  if (view.interleaved) return void(restore(view, to));
  if (!stored.decoder) return rows_to_halves(view, heads, to);
  std::vector<std::byte> decoded(heads ? view.bytes() : 0);
  view.data = heads ? decoded.data() : to;
  stored.decoder->decode(view.as<std::byte>());
  if (heads) rows_to_halves(view, heads, to);
}

// The same to memory of a device.
void unpack(const StoredTensor& stored, const View& view, int64_t heads, Tensor& to) {
  Backend& backend = to.device().backend();
  if (view.bytes() == 0) return;
  if (!stored.decoder && !heads && !view.interleaved) return backend.upload(to.view.data, view.data, view.bytes());
  if (!backend.computes()) return;
  if (backend.host_memory()) return unpack(stored, view, heads, to.view.as<std::byte>());
  std::vector<std::byte> host(view.bytes());
  unpack(stored, view, heads, host.data());
  backend.upload(to.view.data, host.data(), host.size());
}

// Gives up the pages of the file, where they have what the file has.
void drop(const StoredTensor& stored, const View& view) {
  for (const StoredTensor* part : stored.parts) drop(*part, view);
  if (stored.data && !view.interleaved && lies_in_file(stored.data)) drop_pages(stored.data, stored.bytes);
}

// A matrix in the host's memory that a device reads later.
TensorPtr waiting(Device& device, const StoredTensor& stored, const View& view, const WeightOptions& options,
                  const std::shared_ptr<const WeightFile>& file) {
  const DType wanted = options.dtype.value_or(view.dtype);
  if (wanted != view.dtype)
    fail("unsupported", file->path(), ": tensor ", stored.name, " is ", stored.decoder ? stored.decoder->name : "",
         stored.decoder ? " of " : "", dtype_name(view.dtype), " in the file, not ", dtype_name(wanted),
         ": to a device with memory of its own weights are streamed as they are stored; ask for no other dtype, or "
         "convert the file");
  if (!options.heads && !stored.decoder && !view.interleaved)
    return adopt_tensor(device, view.data, stored.shape, view.dtype, options.account,
                        std::const_pointer_cast<WeightFile>(file));
  const TensorPtr ordered = make_spilled(device, stored.shape, view.dtype, options.account, stored.name);
  unpack(stored, view, options.heads, ordered->view.as<std::byte>());
  drop(stored, view);
  return ordered;
}

// Files in memory, as long as someone uses them.
struct Held {
  std::shared_ptr<const WeightFile> file;
  Device& device;
  size_t bytes;
  std::shared_ptr<Device> keeps = device.weak_from_this().lock();  // where it can end before its tensors
  ~Held() { device.let_go(bytes, "weights in memory"); }
};

}  // namespace

const WeightFile& Weights::file() const {
  if (!file_) fail("closed", "these weights are closed");
  return *file_;
}

TensorPtr Weights::tensor(Device& device, const std::string& name, const WeightOptions& options) {
  const StoredTensor& stored = file().get(name);
  if (options.shape && *options.shape != stored.shape)
    fail("shape", file_->path(), ": tensor ", name, " is ", dims_text(stored.shape), ", expected ",
         dims_text(*options.shape), ": the weights belong to another model or configuration");
  if (only_ && !only_->count(name))
    fail("value", file_->path(), ": tensor ", name, " was not among those read into memory; load without `only`");
  View view = file_->view(name);
  const auto placed = in_place_.find(name);
  if (placed != in_place_.end()) view.interleaved = placed->second;
  if (view.interleaved && options.heads)
    fail("value", file_->path(), ": tensor ", name, " lies interleaved already; its rows stay in their order");

  const Backend& backend = device.backend();
  const bool streams = options.stream && stored.shape.size() > 1;
  if (streams && !backend.reads_host_memory()) return waiting(device, stored, view, options, file_);

  const DType wanted = options.dtype.value_or(view.dtype);
  const bool as_is = wanted == view.dtype && !options.copy;
  const bool interleaves = options.interleave && as_is && backend.host_memory() && can_interleave(view);
  const bool in_place = backend.reads_host_memory() && !stored.decoder && !options.heads &&
                        (!view.interleaved || backend.host_memory()) &&
                        reinterpret_cast<uintptr_t>(view.data) % alignment_of(backend, view.dtype) == 0;
  const auto make = [&](DType dtype) {
    return streams ? make_spilled(device, stored.shape, dtype, options.account, name)
                   : make_tensor(device, stored.shape, dtype, options.account);
  };
  const auto read_once = [&](const TensorPtr& copy) {  // pages of a stream's file come back when they are used
    if (streams) drop(stored, view), drop_pages(copy->view.data, copy->view.bytes());
    return copy;
  };

  TensorPtr raw;
  if (in_place) {
    if (interleaves && placed == in_place_.end()) view = interleave(view, available_threads());
    in_place_[name] = view.interleaved;
    raw = adopt_tensor(device, view.data, stored.shape, view.dtype, options.account,
                       std::const_pointer_cast<WeightFile>(file_));
    raw->view.interleaved = view.interleaved;
    if (as_is) return raw;
  } else {
    raw = make(view.dtype);
    unpack(stored, view, options.heads, *raw);
    if (interleaves) raw->view = interleave(raw->view, available_threads());
    read_once(raw);
    if (wanted == view.dtype) return raw;
  }
  const TensorPtr result = make(wanted);
  copy_into(*result, *raw);
  return read_once(result);
}

namespace {
// The bytes of each of a file's files that tensors have which are not `only`.
std::vector<std::vector<MappedFile::Span>> spans_of_others(const WeightFile& file, const std::set<std::string>& kept) {
  std::vector<std::vector<MappedFile::Span>> spans(file.files().size());
  const auto leave_out = [&](const StoredTensor& tensor) {
    if (!tensor.data || tensor.bytes == 0) return;
    const auto index = static_cast<size_t>(tensor.file);
    const auto begin = static_cast<size_t>(tensor.data - file.files()[index]->data());
    spans[index].push_back({begin, begin + tensor.bytes});
  };
  for (const StoredTensor& tensor : file.tensors()) {
    if (kept.count(tensor.name)) continue;
    leave_out(tensor);
    for (const StoredTensor* part : tensor.parts) leave_out(*part);
  }
  for (auto& of_file : spans)
    std::sort(of_file.begin(), of_file.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  return spans;
}
}  // namespace

std::vector<std::vector<MappedFile::Span>> Weights::spans(const std::vector<std::string>& only) const {
  const auto others = spans_of_others(file(), {only.begin(), only.end()});
  std::vector<std::vector<MappedFile::Span>> spans(others.size());
  for (size_t i = 0; i < others.size(); ++i) {
    size_t from = 0;
    for (const MappedFile::Span& other : others[i]) {
      if (other.begin > from) spans[i].push_back({from, other.begin});
      from = other.end;
    }
    if (from < file_->files()[i]->size()) spans[i].push_back({from, file_->files()[i]->size()});
  }
  return spans;
}

bool Weights::load(Device& device, bool if_room, const std::vector<std::string>* only) {
  file();
  for (const auto& [name, interleaved] : in_place_)
    if (interleaved)
      fail("value", file_->path(), ": tensor ", name, " lies interleaved in memory already; load the file before");
  if (!device.backend().reads_host_memory()) return false;
  std::vector<std::vector<MappedFile::Span>> without(file_->files().size());
  std::optional<std::set<std::string>> kept;
  if (only) kept.emplace(only->begin(), only->end()), without = spans_of_others(*file_, *kept);
  if (device.budget() == 0) {
    if (!load_files(file_->files(), if_room, without)) return false;
    only_ = kept;
    return true;
  }
  size_t bytes = 0;
  for (size_t i = 0; i < without.size(); ++i) bytes += bytes_without(*file_->files()[i], without[i]);
  if (if_room && bytes + device.held() > device.budget()) return false;
  device.hold(bytes, "weights in memory", file_->path());
  const std::shared_ptr<Held> held(new Held{file_, device, bytes});
  if (!load_files(file_->files(), if_room, without)) return false;
  file_ = std::shared_ptr<const WeightFile>(held, held->file.get());
  only_ = kept;
  return true;
}

}  // namespace qeng
