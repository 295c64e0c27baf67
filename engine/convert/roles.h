// Who speaks, by the names that datasets have: ShareGPT's, OpenAI's (old and new), Gemma's, Open Assistant's,
// LangChain's, and those of LLaMA-Factory, ms-swift, Unsloth and Llama. Capitals do not matter. The general way has the
// same table (scripts/qeng/chat/records.lua); a test holds one against the other.
#pragma once
#include <string_view>
#include <utility>

namespace qeng {

// "calls": what the assistant says is a call of a function, as JSON. "developer": a system message where the template
// has no such role.
constexpr std::pair<std::string_view, std::string_view> kRoles[] = {
    {"system", "system"},      {"developer", "developer"}, {"user", "user"},           {"human", "user"},
    {"prompter", "user"},      {"input", "user"},          {"assistant", "assistant"}, {"gpt", "assistant"},
    {"chatgpt", "assistant"},  {"bing", "assistant"},      {"bard", "assistant"},      {"model", "assistant"},
    {"bot", "assistant"},      {"ai", "assistant"},        {"output", "assistant"},    {"tool", "tool"},
    {"function", "tool"},      {"observation", "tool"},    {"ipython", "tool"},        {"function_response", "tool"},
    {"tool_response", "tool"}, {"function_call", "calls"}, {"tool_call", "calls"},
};

// "" where the name is none of them.
inline std::string_view role_of(std::string_view speaker) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  for (const auto& [name, role] : kRoles) {
    bool same = name.size() == speaker.size();
    for (size_t i = 0; same && i < name.size(); ++i) same = name[i] == lower(speaker[i]);
    if (same) return role;
  }
  return {};
}

}  // namespace qeng
