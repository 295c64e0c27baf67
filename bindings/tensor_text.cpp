#include "bindings/tensor_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "kernels/interleave.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {
constexpr int64_t kWhole =
    1000;  // elements that are all shown; this, the edges and the decimals are NumPy's and torch's
constexpr int64_t kEdge = 3;
constexpr int kDecimals = 4;
constexpr size_t kWidth = 80;  // of a line

// Elements first .. first + count, decoded. Little more than those is read.
std::vector<double> read_elements(const TensorPtr& x, int64_t first, int64_t count) {
  const View& view = x->view;
  int64_t begin = 0;  // of what is read
  TensorPtr part;
  if (view.interleaved) {
    const int64_t row = view.elements() / view.shape[0], group = first / row / kInterleavedRows * kInterleavedRows;
    part = row_range(x, group, kInterleavedRows), begin = group * row;
  } else {
    const int64_t unit = dtype_info(view.dtype).elements;  // a block cannot be cut
    const int64_t from = first / unit, to = (first + count + unit - 1) / unit;
    part = row_range(reshape_view(x, {view.elements() / unit, unit}), from, to - from), begin = from * unit;
  }
  const std::vector<double> values = to_host(*part);
  const auto at = values.begin() + (first - begin);
  return {at, at + count};
}

// The indices of a dimension that are shown; -1 stands for those left out.
std::vector<int64_t> shown_of(int64_t size, bool whole) {
  std::vector<int64_t> shown;
  for (int64_t i = 0; i < size; ++i) {
    if (!whole && size > 2 * kEdge && i == kEdge) shown.push_back(-1), i = size - kEdge;
    shown.push_back(i);
  }
  return shown;
}

// One form for all numbers of a tensor, so that their points stand below each other.
struct Form {
  const char* format = "%.*f";
  int decimals = 0;
  bool point = false;  // after numbers without decimals: they are floats

  std::string operator()(double value) const {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    char text[400];  // 1.8e308 without an exponent
    std::snprintf(text, sizeof text, format, decimals, value);
    return std::string(text) + (point ? "." : "");
  }
};

// The decimals of the text of a number that are not zeros at the end.
int needed_decimals(std::string_view text) {
  const std::string_view number = text.substr(0, text.find('e'));
  const size_t point = number.find('.'), last = number.find_last_not_of('0');
  return point == std::string_view::npos || last <= point ? 0 : static_cast<int>(last - point);
}

Form form_of(const std::vector<double>& values, DType dtype) {
  Form form;
  if (dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8) return form;
  double least = HUGE_VAL, most = 0;
  bool whole = true;
  for (double value : values) {
    if (!std::isfinite(value)) continue;
    whole &= value == std::floor(value);
    if (value != 0) least = std::min(least, std::abs(value)), most = std::max(most, std::abs(value));
  }
  if (whole && most < 1e8) return form.point = true, form;
  if (most >= 1e8 || least < 1e-4 || most / least > 1000) form.format = "%.*e";
  form.decimals = kDecimals;
  int needed = 1;
  for (double value : values)
    if (std::isfinite(value)) needed = std::max(needed, needed_decimals(form(value)));
  form.decimals = needed;
  return form;
}

class Text {
 public:
  explicit Text(const TensorPtr& x) : x_(x), whole_(x->view.elements() <= kWhole) {
    const View& view = x->view;
    for (int d = 0; d < view.rank; ++d) shown_.push_back(shown_of(view.shape[d], whole_));
    read(0, 0);
    const Form form = form_of(values_, view.dtype);
    for (double value : values_) cells_.push_back(form(value)), width_ = std::max(width_, cells_.back().size());
  }

  std::string lines() {
    write(0);
    return out_;
  }

 private:
  // Reads the shown values of dimension d and those after it; `index` counts elements of dimensions before it.
  void read(int d, int64_t index) {
    const View& view = x_->view;
    if (whole_) {
      values_ = to_host(*x_);
    } else if (d == view.rank - 1) {
      const int64_t columns = view.shape[d], first = index * columns, edge = std::min(columns, kEdge);
      if (columns <= 2 * kEdge) return append(first, columns);
      append(first, edge), append(first + columns - edge, edge);
    } else {
      for (int64_t i : shown_[static_cast<size_t>(d)])
        if (i >= 0) read(d + 1, index * view.shape[d] + i);
    }
  }
  void append(int64_t first, int64_t count) {
    const std::vector<double> some = read_elements(x_, first, count);
    values_.insert(values_.end(), some.begin(), some.end());
  }

  std::string next_cell() {
    const std::string& cell = cells_[next_++];
    return std::string(width_ - cell.size(), ' ') + cell;
  }
  void new_line(int indent) {
    out_ += '\n' + std::string(static_cast<size_t>(indent), ' '), line_ = out_.size() - static_cast<size_t>(indent);
  }

  void write(int d) {
    const int rank = x_->view.rank;
    if (rank == 0) return void(out_ += next_cell());
    out_ += '[';
    bool first = true;
    for (int64_t i : shown_[static_cast<size_t>(d)]) {
      const std::string cell = i < 0 ? "..." : d == rank - 1 ? next_cell() : "";
      if (d == rank - 1) {
        if (!first && out_.size() - line_ + cell.size() + 1 > kWidth)
          new_line(d + 1);
        else if (!first)
          out_ += ' ';
        out_ += cell;
      } else {
        if (!first) out_ += std::string(static_cast<size_t>(rank - 2 - d), '\n'), new_line(d + 1);
        if (i < 0)
          out_ += cell;
        else
          write(d + 1);
      }
      first = false;
    }
    out_ += ']';
  }

  const TensorPtr& x_;
  const bool whole_;
  std::vector<std::vector<int64_t>> shown_;  // of each dimension
  std::vector<double> values_;               // those shown, in order
  std::vector<std::string> cells_;
  size_t width_ = 0, next_ = 0, line_ = 0;  // of a cell; the next one; where the line begins in out_
  std::string out_;
};
}  // namespace

std::string tensor_text(const TensorPtr& x) {
  std::string head = shape_text(x->view);
  if (!x->label.empty()) head += " " + x->label;
  if (x->view.elements() == 0) return head;
  const std::string lines = Text(x).lines();
  const bool one_line = lines.find('\n') == std::string::npos && head.size() + 2 + lines.size() <= kWidth;
  return head + (one_line ? "  " : "\n") + lines;
}

}  // namespace qeng
