#include "engine/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "kernels/error.h"

namespace qeng {
namespace {

constexpr uint32_t kMostSteps = 10'000'000;                     // of one match
constexpr size_t kLeastStack = 32 << 10, kMostStack = 4 << 20;  // of compiled patterns
constexpr size_t kLongest = 1 << 16;

// What \s and \w are to Oniguruma. PCRE2 has U+180E and lacks U+0085 in the one; in the other it lacks marks and
// circled letters and has all numbers, of which Oniguruma has six (²³¹¼½¾), and those not within a class.
constexpr std::string_view kSpace =
    "\\t-\\r \\x85\\xA0\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kWordAlone = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE";

// Oniguruma's POSIX brackets by PCRE2's names. Others (punct, graph, ...) differ from version to version and are
// refused.
constexpr std::pair<std::string_view, std::string_view> kPosix[] = {
    {"alpha", "\\p{Alphabetic}"},
    {"alnum", "\\p{Alphabetic}\\p{Nd}"},
    {"upper", "\\p{Uppercase}"},
    {"lower", "\\p{Lowercase}"},
    {"digit", "\\p{Nd}"},
    {"space", kSpace},
    {"word", kWord},
    {"cntrl", "\\p{Cc}"},
    {"ascii", "\\x00-\\x7F"},
    {"xdigit", "0-9A-Fa-f"},
};
constexpr int kDeepest = 16;  // classes within classes

// Oniguruma's \p{Han} is what the script alone uses; PCRE2 has that, and what several do, for \p{sc:Han} and \p{Han}.
bool names_script(const std::string& name) {
  const std::string text = "\\p{sc:" + name + "}";
  int error = 0;
  size_t offset = 0;
  pcre2_code* const code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), PCRE2_UTF, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

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
    if (text_[at_] == '\\') return void(made += escape(false));
    if (text_[at_] == '[') return void(made += character_class(0));
    if (starts("}+")) {
      // Oniguruma repeats what the interval gave, PCRE2 would not give back; the two differ.
      refuse("}+", "is read differently by Oniguruma and others");
    } else if (starts("(?m")) {
      refuse("(?m", "means another thing to Oniguruma");
    } else if (text_[at_] == '(') {
      open_group();
    } else if (text_[at_] == ')' && folds_.size() > 1) {
      folds_.pop_back();
    }
    made += text_[at_++];
  }
  // Keeps whether cases are folded: (?i: to the end of the group, (?i) to the end of the one around it.
  void open_group() {
    size_t end = at_ + 1;
    bool folds = folds_.back();
    if (starts("(?"))
      for (++end; end < text_.size() && (std::isalpha(static_cast<unsigned char>(text_[end])) || text_[end] == '-');
           ++end)
        folds = folds || text_[end] == 'i';
    if (end < text_.size() && text_[end] == ')') folds_.back() = folds;
    folds_.push_back(folds);
  }
  // A class, of which '[' comes next. Oniguruma's may hold classes, which join it, and && between what it intersects:
  // a group of alternatives and look-aheads that takes one character, as it does.
  std::string character_class(int depth) {
    if (depth > kDeepest) refuse("[", "is nested too deeply");
    const bool negated = starts("[^");
    at_ += negated ? 2 : 1;
    std::string set, parts, sides;  // within one pair of brackets, before the next &&, before the last &&
    const auto add_part = [&](const std::string& part) { parts += (parts.empty() ? "" : "|") + part; };
    const auto end_set = [&] {
      if (!set.empty()) add_part("[" + set + "]");
      set.clear();
    };
    bool range = false;  // a hyphen came last, and something before it
    for (bool first = true; first || at_ == text_.size() || text_[at_] != ']'; first = false) {
      if (at_ == text_.size()) refuse("[", "has no end");
      if (range && (text_[at_] == '[' || starts("&&"))) refuse("-", "has no end of its range");
      range = text_[at_] == '-' && !set.empty();
      if (starts("&&")) {
        end_set();
        if (parts.empty()) refuse("&&", "has nothing on its left");
        sides += "(?=" + parts + ")";
        parts.clear(), at_ += 2;
      } else if (starts("[:")) {
        set += posix();
      } else if (text_[at_] == '[') {
        end_set();
        add_part(character_class(depth + 1));
      } else if (starts("\\S") || starts("\\W")) {
        end_set();
        add_part("[^" + std::string(starts("\\S") ? kSpace : kWord) + "]");
        at_ += 2;
      } else if (text_[at_] == '\\') {
        set += escape(true);
      } else {
        if (set.empty() && text_[at_] == '^') set += '\\';
        set += text_[at_++];
      }
    }
    ++at_;
    if (sides.empty() && parts.empty()) return (negated ? "[^" : "[") + set + "]";
    end_set();
    if (parts.empty()) refuse("&&", "has nothing on its right");
    // Oniguruma folds the whole class, PCRE2 would fold its parts, of which those with ^ take less then.
    if (folds_.back()) refuse("[", "holds classes or && where cases are folded");
    const std::string whole = sides + "(?:" + parts + ")";  // of which one way to match is as good as another
    return negated ? "(?:(?!" + whole + ")(?s:.))" : "(?>" + whole + ")";
  }
  std::string posix() {  // [:alpha:]
    const size_t end = text_.find(":]", at_);
    if (end == std::string::npos) refuse("[:", "has no end");
    const std::string_view name = std::string_view(text_).substr(at_ + 2, end - at_ - 2);
    for (const auto& [known, properties] : kPosix)
      if (name == known) {
        at_ = end + 2;
        return std::string(properties);
      }
    refuse(std::string_view(text_).substr(at_, end + 2 - at_), "is not read");
  }
  std::string escape(bool in_class) {
    if (at_ + 1 == text_.size()) refuse("\\", "stands at the end");
    const char letter = text_[at_ + 1];
    at_ += 2;
    const std::string space(kSpace), word(kWord), inside = "[" + std::string(kWordAlone) + "]";
    switch (letter) {
      case 's': return in_class ? space : "[" + space + "]";
      case 'w': return in_class ? word : inside;
      case 'd': return "\\p{Nd}";
      case 'D': return "\\P{Nd}";
      case 'S': return "[^" + space + "]";
      case 'W': return "[^" + std::string(kWordAlone) + "]";
      case 'b':
        if (in_class) break;
        return "(?:(?<=" + inside + ")(?!" + inside + ")|(?<!" + inside + ")(?=" + inside + "))";
      case 'B':
        if (in_class) break;
        return "(?:(?<=" + inside + ")(?=" + inside + ")|(?<!" + inside + ")(?!" + inside + "))";
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
    std::string same = {'\\', letter};
    if (at_ < text_.size() && text_[at_] == '{') {  // \p{Lu}: no interval
      const size_t end = std::min(text_.find('}', at_), text_.size() - 1);
      const std::string name = text_.substr(at_ + 1, end - at_ - 1);
      same += "{" + (names_script(name) ? "sc:" + name : name) + text_[end];
      at_ = end + 1;
    }
    return same;
  }
  const std::string& text_;
  size_t at_ = 0;
  std::vector<bool> folds_ = {false};  // in each open group
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
