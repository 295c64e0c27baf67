#include "engine/convert/worker.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>

#include "engine/packets/frame.h"
#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"

namespace qeng {
namespace {
// What a record is rejected for, beside what parsers and templates say.
struct Refusal {
  const char* reason;
  std::string message;
};

uint64_t content_hash(std::span<const int32_t> tokens, std::span<const uint8_t> mask, bool masked) {
  const uint64_t seed = masked ? XXH3_64bits(mask.data(), mask.size()) : 0;
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), seed);
}
}  // namespace

std::optional<uint8_t> source_id(const std::string& text, const std::map<std::string, uint8_t>& names) {
  static const std::map<std::string, uint8_t> kProtocol = {{"text_corpus", packet_source::text_corpus},
                                                           {"text", packet_source::text_corpus},
                                                           {"code_repo", packet_source::code_repo},
                                                           {"code", packet_source::code_repo},
                                                           {"chat", packet_source::chat},
                                                           {"instruction", packet_source::instruction},
                                                           {"synthetic", packet_source::synthetic}};
  for (const auto* known : {&names, &kProtocol})
    if (const auto found = known->find(text); found != known->end()) return found->second;
  const bool hex = text.starts_with("0x") || text.starts_with("0X");
  const char *begin = text.data() + (hex ? 2 : 0), *end = text.data() + text.size();
  unsigned value = 0;
  const auto [stop, error] = std::from_chars(begin, end, value, hex ? 16 : 10);
  if (error != std::errc() || stop != end || value > 255) return std::nullopt;
  return static_cast<uint8_t>(value);
}

BlockConverter::BlockConverter(const ConvertOptions& options)
    : options_(options), reader_(options.source_field), renderer_(options.tokenizer, options.render) {}

uint8_t BlockConverter::source_of(const RecordContent& document) const {
  if (options_.source) return *options_.source;
  if (options_.source_field.empty()) return document.source;
  if (!document.has_source_field) throw Refusal{"source", "has no field " + options_.source_field};
  if (const auto id = source_id(document.source_field, options_.source_names)) return *id;
  throw Refusal{"source", options_.source_field + " is \"" + document.source_field.substr(0, 40) +
                              "\": neither a number of 0 to 255 nor a known name; give it a number with source_names"};
}

void BlockConverter::render_json(std::string_view text) {
  try {
    reader_.read(text, document_);
  } catch (const Error& error) {
    throw Refusal{error.code == "unsupported" ? "nested too deeply" : "not JSON", error.what()};
  }
  repaired_ = reader_.repaired();
  src_ = source_of(document_);
  if (renderer_.renders(document_)) return renderer_.render(document_, rendered_);
  if (!general_) general_ = options_.renderer();
  pieces_.clear();
  try {
    general_->render(reader_.json(), pieces_);
  } catch (const Error& error) {
    if (error.code == "format") throw Refusal{"shape", error.what()};
    if (error.code == "memory" || error.code == "io" || error.code == "internal") throw;
    throw Refusal{"template", error.what()};
  }
  renderer_.render(pieces_, rendered_);
}

// The tokens [begin, end) as a record of their own.
void BlockConverter::append(size_t begin, size_t end, ConvertedBlock& out) {
  const std::span<const int32_t> tokens(&rendered_.tokens[begin], end - begin);
  const std::span<const uint8_t> mask(&rendered_.mask[begin], end - begin);
  const bool masked = std::find(mask.begin(), mask.end(), 0) != mask.end();
  const size_t before = out.frames.size();
  const size_t frames = token_frames(tokens.size()) + (masked ? mask_frames(tokens.size()) : 0);
  if (frames > kMaxRecordFrames) throw Refusal{"too long", "is of " + std::to_string(tokens.size()) + " tokens"};
  append_record(out.frames, tokens, masked ? mask : std::span<const uint8_t>(), src_, options_.destination);
  SpooledRecord record;
  record.bytes = static_cast<uint32_t>(out.frames.size() - before);
  record.tokens = static_cast<uint32_t>(tokens.size());
  record.loss_tokens =
      static_cast<uint32_t>(std::count_if(mask.begin() + 1, mask.end(), [](uint8_t m) { return m != 0; }));
  record.frames = static_cast<uint16_t>(frames);
  record.src = src_, record.dst = options_.destination;
  if (options_.dedupe) record.hash = content_hash(tokens, mask, masked);
  out.records.push_back(record);
}

void BlockConverter::convert_record(std::string_view text, const RecordBlock& block, ConvertedBlock& out) {
  repaired_ = false;
  const DataFormat::Is& format = block.format->is;
  if (format.is_text) {
    src_ = options_.source.value_or(packet_source::text_corpus);
    std::string storage;
    const std::string_view valid = valid_utf8(text, storage);
    repaired_ = valid.data() != text.data();
    renderer_.render_text(valid, rendered_);
  } else if (format.to_json) {
    try {
      format.to_json(*block.names, text, json_);
    } catch (const Error& error) {
      throw Refusal{format.refusal, error.what()};
    }
    const size_t size = json_.size();
    json_.append(DocumentReader::kPadding, '\0');
    render_json(std::string_view(json_).substr(0, size));
  } else {
    render_json(text);
  }
  const size_t tokens = rendered_.tokens.size(), limit = options_.max_tokens;
  if (tokens == 0) throw Refusal{"empty", "empty"};
  out.repaired += repaired_;
  if (limit == 0 || tokens <= limit) return append(0, tokens, out);
  ++out.longer;
  switch (options_.longer) {
    case LongRecords::keep: append(0, tokens, out); break;
    case LongRecords::drop: break;
    case LongRecords::end: append(tokens - limit, tokens, out); break;
    case LongRecords::truncate: append(0, limit, out); break;
    case LongRecords::split:
      for (size_t at = 0; at < tokens; at += limit) append(at, std::min(at + limit, tokens), out);
      break;
  }
}

void BlockConverter::convert(RecordBlock& block, ConvertedBlock& out) {
  out.file = block.file, out.end = block.end;
  out.rejected = std::move(block.rejected);
  out.seen = block.records.size() + out.rejected.size();
  for (const RecordSpan& span : block.records) {
    try {
      convert_record(std::string_view(block.bytes).substr(span.begin, span.size), block, out);
    } catch (const Refusal& refusal) {
      out.rejected.push_back({span.line, span.number, refusal.reason, refusal.message});
    }
  }
}

}  // namespace qeng
