#include "engine/convert/render.h"

#include <algorithm>

#include "kernels/error.h"

namespace qeng {
namespace {
void fill_mask(Rendered& out, bool target) { out.mask.resize(out.tokens.size(), target ? 1 : 0); }
}  // namespace

PlainRenderer::PlainRenderer(std::shared_ptr<const Tokenizer> tokenizer, RenderOptions options)
    : tokenizer_(std::move(tokenizer)), options_(std::move(options)) {
  if (options_.chatml) {
    const auto start = tokenizer_->id_of("<|im_start|>"), finish = tokenizer_->id_of("<|im_end|>");
    if (!start || !finish) fail("value", "template chatml: the tokenizer has no <|im_start|> and <|im_end|>");
    start_ = *start, finish_ = *finish;
    newline_ = tokenizer_->encode("\n", false);
  }
}

void PlainRenderer::append(std::string_view text, bool target, bool special, Rendered& out) {
  if (text.empty()) return;
  tokenizer_->encode(text, out.tokens, special, true);
  fill_mask(out, target);
}

void PlainRenderer::message(std::string_view role, std::string_view content, bool target, Rendered& out) {
  auto header = std::find_if(headers_.begin(), headers_.end(), [&](const Header& h) { return h.role == role; });
  if (header == headers_.end()) {
    const std::string text = std::string(role) + "\n";
    headers_.push_back({std::string(role), tokenizer_->encode(text, false)});
    header = headers_.end() - 1;
  }
  out.tokens.push_back(start_);
  out.tokens.insert(out.tokens.end(), header->tokens.begin(), header->tokens.end());
  fill_mask(out, false);
  append(content, target, false, out);
  out.tokens.push_back(finish_);
  fill_mask(out, target);
  out.tokens.insert(out.tokens.end(), newline_.begin(), newline_.end());
  fill_mask(out, false);
}

void PlainRenderer::render(const RecordContent& document, Rendered& out) {
  out.clear();
  if (document.is_text) return render_text(document.text, out);
  const auto& messages = document.messages;
  if (messages.front().role != "system" && options_.default_system)
    message("system", *options_.default_system, false, out);
  size_t last = messages.size();
  for (size_t i = 0; i < messages.size(); ++i)
    if (messages[i].role == "assistant") last = i;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool target =
        messages[i].role == "assistant" && messages[i].train && (options_.turns == Turns::all || i == last);
    message(messages[i].role, messages[i].content, target, out);
  }
}

void PlainRenderer::render_text(std::string_view text, Rendered& out) {
  out.clear();
  auto& tokens = out.tokens;
  if (options_.text_begin) tokens.push_back(*options_.text_begin);
  append(text, true, options_.text_special, out);
  if (tokens.size() > 1 && tokens[0] == options_.text_begin && tokens[1] == tokens[0]) tokens.erase(tokens.begin());
  const auto last = tokens.empty() ? std::nullopt : std::optional(tokens.back());
  const bool ended = last && (last == options_.text_end || last == tokenizer_->eos());
  if (options_.text_end && !ended) tokens.push_back(*options_.text_end);
  fill_mask(out, true);
}

void PlainRenderer::render(const std::vector<RenderPiece>& pieces, Rendered& out) {
  out.clear();
  for (const RenderPiece& piece : pieces) {
    if (piece.id < 0) {
      append(piece.text, piece.target, piece.special, out);
    } else {
      out.tokens.push_back(piece.id);
      fill_mask(out, piece.target);
    }
  }
}

}  // namespace qeng
