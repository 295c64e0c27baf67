// Documents to tokens with the part that is trained. Plain conversations in ChatML and plain texts are rendered
// here; what a model's own template has to render comes as pieces from a RecordRenderer.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/convert/document.h"
#include "engine/tokenizer/tokenizer.h"

namespace qeng {

// A stretch of a rendered record: text, or one token where id is not negative.
struct RenderPiece {
  std::string text;
  int32_t id = -1;
  bool target = false;   // trained
  bool special = false;  // <|...|> in the text are tokens (never in what a user or an assistant wrote)
};

// The general way, for records of every shape and templates of every kind; made where the templates' language lives.
// One for each thread. A record that it cannot render is an Error: "format" for a shape that is not known, another for
// what the template says; "memory", "io" and "internal" end the conversion.
class RecordRenderer {
 public:
  virtual ~RecordRenderer() = default;
  virtual void render(std::string_view json, std::vector<RenderPiece>& pieces) = 0;
};

enum class Turns { all, last };  // which of the assistant's messages are trained

struct RenderOptions {
  bool chatml = false;                        // conversations are ChatML; otherwise only the general way renders them
  std::optional<std::string> default_system;  // the system message where a ChatML conversation has none
  Turns turns = Turns::all;
  std::optional<int32_t> text_begin, text_end;  // around a plain text, unless it spells them itself
  bool text_special = true;                     // <|...|> in a plain text are tokens
};

// mask: one byte a token, 1 where it is trained.
struct Rendered {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
  void clear() { tokens.clear(), mask.clear(); }
};

class PlainRenderer {
 public:
  PlainRenderer(std::shared_ptr<const Tokenizer> tokenizer, RenderOptions options);

  bool renders(const RecordContent& document) const { return document.plain && (document.is_text || options_.chatml); }
  void render(const RecordContent& document, Rendered& out);  // of which renders() is true
  void render_text(std::string_view text, Rendered& out);     // trained throughout
  void render(const std::vector<RenderPiece>& pieces, Rendered& out);

 private:
  struct Header {
    std::string role;
    std::vector<int32_t> tokens;  // of "role\n"
  };
  void append(std::string_view text, bool target, bool special, Rendered& out);
  void message(std::string_view role, std::string_view content, bool target, Rendered& out);
  std::shared_ptr<const Tokenizer> tokenizer_;
  RenderOptions options_;
  int32_t start_ = -1, finish_ = -1;  // <|im_start|>, <|im_end|>
  std::vector<Header> headers_;       // of the roles seen so far, at most three
  std::vector<int32_t> newline_;
};

}  // namespace qeng
