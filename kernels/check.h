// Shape and dtype checks for backends. Messages name the operation, the view, what it is and what was expected:
//   rmsnorm: w is bf16 [64], expected bf16 [896]
#pragma once
#include <initializer_list>
#include <string>
#include <type_traits>

#include "kernels/error.h"
#include "kernels/interleave.h"
#include "kernels/view_text.h"

namespace qeng {

struct Check {
  const char* op;

  // The view is there, its rows in order. An empty view (0 elements) may have no memory.
  void present(const char* label, const View& view) const {
    present_in_any_order(label, view);
    if (view.interleaved)
      fail("dtype", op, ": ", label, " is ", shape_text(view), ", whose rows are interleaved: decode it first, to f32");
  }
  void present_in_any_order(const char* label, const View& view) const {
    if (!view && !(view.rank > 0 && view.elements() == 0)) fail("shape", op, ": ", label, " is missing");
    if (view.interleaved && !can_interleave(view))
      fail("dtype", op, ": ", label, " is ", shape_text(view), ", of which no rows are interleaved");
  }
  void dtype(const char* label, const View& view, std::initializer_list<DType> allowed) const {
    present(label, view);
    std::string names;
    for (DType type : allowed) {
      if (view.dtype == type) return;
      names += (names.empty() ? "" : " or ") + std::string(dtype_name(type));
    }
    fail("dtype", op, ": ", label, " is ", shape_text(view), ", expected ", names);
  }
  // A float, or a stored dtype that is only read: f16 or a block format, of whose rows each is whole blocks, in any
  // order.
  void is_stored(const char* label, const View& view) const {
    present_in_any_order(label, view);
    if (!is_block(view.dtype)) return dtype(label, view, {DType::f32, DType::bf16, DType::f16});
    const int elements = dtype_info(view.dtype).elements;
    if (view.columns() % elements != 0)
      fail("shape", op, ": ", label, " is ", shape_text(view), ", whose rows are not whole blocks of ", elements);
  }
  // The dtype of the arithmetic, or a stored one, as bf16 is for f32.
  void is_weight(const char* label, const View& view, DType arithmetic) const {
    if (view.dtype == DType::f32) return dtype(label, view, {arithmetic});
    is_stored(label, view);
  }
  void is_float(const char* label, const View& view) const { dtype(label, view, {DType::f32, DType::bf16}); }

  // Exactly this dtype and shape.
  void is(const char* label, const View& view, DType type, std::initializer_list<int64_t> dims) const {
    present(label, view);
    const View expected(nullptr, type, dims);
    if (view.dtype != type)
      fail("dtype", op, ": ", label, " is ", shape_text(view), ", expected ", shape_text(expected));
    if (!view.same_shape(expected))
      fail("shape", op, ": ", label, " is ", shape_text(view), ", expected ", shape_text(expected));
  }
  // The same shape (and dtype) as another view.
  void like(const char* label, const View& view, const char* other_label, const View& other,
            bool same_dtype = true) const {
    present(label, view);
    if (!view.same_shape(other))
      fail("shape", op, ": ", label, " is ", shape_text(view), ", ", other_label, " is ", shape_text(other));
    if (same_dtype && view.dtype != other.dtype)
      fail("dtype", op, ": ", label, " is ", shape_text(view), ", ", other_label, " is ", shape_text(other));
  }
  // This dtype and number of elements, whatever the shape.
  void count(const char* label, const View& view, DType type, int64_t elements) const {
    dtype(label, view, {type});
    if (view.elements() != elements)
      fail("shape", op, ": ", label, " is ", shape_text(view), ", expected ", elements, " elements");
  }
  // message: text, or a function that makes it, as operations are checked each time they run.
  template <class Message>
  void that(bool condition, const Message& message) const {
    if (condition) return;
    if constexpr (std::is_invocable_v<Message>)
      fail("shape", op, ": ", message());
    else
      fail("shape", op, ": ", message);
  }
};

// The pages of sequences: pages [documents, most] i32, lengths [documents] i32, page_tokens a multiple of `unit`.
inline void check_page_table(const Check& check, const View& pages, const View& lengths, int64_t documents,
                             int64_t page_tokens, int64_t unit) {
  check.count("lengths", lengths, DType::i32, documents);
  check.dtype("pages", pages, {DType::i32});
  check.that(pages.rank == 2 && pages.shape[0] == documents,
             [&] { return "pages is " + shape_text(pages) + ", expected [" + std::to_string(documents) + ", most]"; });
  check.that(page_tokens > 0 && page_tokens % unit == 0, [&] {
    return "page_tokens is " + std::to_string(page_tokens) + ", expected " +
           (unit == 1 ? std::string("at least 1") : "a multiple of " + std::to_string(unit));
  });
}

}  // namespace qeng
