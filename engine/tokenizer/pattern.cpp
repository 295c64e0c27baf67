#include "engine/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "kernels/error.h"

namespace qeng {
namespace {

constexpr uint32_t kMostSteps = 10'000'000;                     // of one match
constexpr size_t kLeastStack = 32 << 10, kMostStack = 4 << 20;  // of compiled patterns
constexpr size_t kLongest = 1 << 16;

// What \s and \w are to Oniguruma: PCRE2 lacks U+0085 in the one, marks, punctuation and circled letters in the other.
constexpr std::string_view kSpace = "\\s\\x{85}";
constexpr std::string_view kWord =
    "\\p{L}\\p{M}\\p{N}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";

// The pattern as PCRE2 has to be given it.
class Translation {
 public:
  explicit Translation(const std::string& text) : text_(text) {
    while (at_ < text_.size()) step();
  }
  std::string made;

 private:
  [[noreturn]] void refuse(std::string_view part, const char* why) const {
    fail("unsupported", "pattern ", text_, ": ", part, " ", why);
  }
  bool starts(std::string_view part) const { return std::string_view(text_).substr(at_).starts_with(part); }
  void step() {
    if (text_[at_] == '\\') return escape();
    if (in_class_) {
      if (starts("&&")) refuse("&&", "in a class is Oniguruma's intersection");
      if (text_[at_] == '[' && !starts("[:")) refuse("[", "inside a class is a class of Oniguruma's");
      if (starts("[:")) {  // [:alpha:]
        const size_t end = text_.find(":]", at_);
        if (end == std::string::npos) refuse("[:", "has no end");
        made.append(text_, at_, end + 2 - at_);
        at_ = end + 2, first_in_class_ = false;
        return;
      }
      if (text_[at_] == ']' && !first_in_class_) in_class_ = false;
      first_in_class_ = false;
    } else if (text_[at_] == '[') {
      in_class_ = first_in_class_ = true;
      if (starts("[^")) made += '[', ++at_;
    } else if (starts("}+")) {
      // Oniguruma repeats what the interval gave, PCRE2 would not give back; the two differ.
      refuse("}+", "is read differently by Oniguruma and others");
    } else if (starts("(?m")) {
      refuse("(?m", "means another thing to Oniguruma");
    }
    made += text_[at_++];
  }
  void escape() {
    if (at_ + 1 == text_.size()) refuse("\\", "stands at the end");
    const char letter = text_[at_ + 1];
    first_in_class_ = false;
    at_ += 2;
    const std::string space(kSpace), word(kWord), inside = "[" + word + "]";
    switch (letter) {
      case 's': made += in_class_ ? space : "[" + space + "]"; return;
      case 'w': made += in_class_ ? word : inside; return;
      case 'd': made += "\\p{Nd}"; return;
      case 'D': made += "\\P{Nd}"; return;
      case 'S':
      case 'W':
        if (in_class_) refuse(letter == 'S' ? "\\S" : "\\W", "in a class is not read");
        made += "[^" + (letter == 'S' ? space : word) + "]";
        return;
      case 'b':
      case 'B':
        if (in_class_) break;
        made += letter == 'b' ? "(?:(?<=" + inside + ")(?!" + inside + ")|(?<!" + inside + ")(?=" + inside + "))"
                              : "(?:(?<=" + inside + ")(?=" + inside + ")|(?<!" + inside + ")(?!" + inside + "))";
        return;
      case 'h':
      case 'H':
      case 'R':
      case 'X':
      case 'K':
      case 'G':
      case 'Z':
      case 'C': refuse(std::string("\\") + letter, "is not read alike everywhere");
      default: break;
    }
    made += '\\';
    made += letter;
    if (at_ < text_.size() && text_[at_] == '{') {  // \p{Lu}: no interval
      const size_t end = std::min(text_.find('}', at_), text_.size() - 1);
      made.append(text_, at_, end + 1 - at_);
      at_ = end + 1;
    }
  }
  const std::string& text_;
  size_t at_ = 0;
  bool in_class_ = false, first_in_class_ = false;
};

struct Free {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};
template <class T>
using Owned = std::unique_ptr<T, Free>;

// A thread's memory for matching.
struct Workspace {
  Owned<pcre2_match_data> data{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack> stack{pcre2_jit_stack_create(kLeastStack, kMostStack, nullptr)};
  Workspace() {
    if (!data || !context) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), kMostSteps);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

std::string message_of(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Pattern::Code : Owned<pcre2_code> {};

Pattern::Pattern(const std::string& text) : text_(text), code_(std::make_unique<Code>()) {
  if (text.size() > kLongest)
    fail("unsupported", "a pattern of ", text.size(), " bytes; at most ", kLongest, " are read");
  const std::string given = Translation(text).made;
  const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE | PCRE2_MULTILINE;
  code_->reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(given.data()), given.size(), options, &error, &offset, context.get()));
  if (!*code_) fail("unsupported", "pattern ", text, ": ", message_of(error));
  pcre2_jit_compile(code_->get(), PCRE2_JIT_COMPLETE);  // where it cannot, patterns are interpreted
}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

bool Pattern::find(std::string_view text, size_t from, size_t& begin, size_t& end) const {
  thread_local Workspace workspace;
  const int found = pcre2_match(code_->get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                PCRE2_NO_UTF_CHECK, workspace.data.get(), workspace.context.get());
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0)
    fail("value", "pattern ", text_, ": a text of ", text.size(), " bytes cannot be matched: ", message_of(found));
  const size_t* const span = pcre2_get_ovector_pointer(workspace.data.get());
  begin = span[0], end = span[1];
  return true;
}

}  // namespace qeng
