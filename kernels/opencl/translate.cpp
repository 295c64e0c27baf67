#include "kernels/opencl/translate.h"

#include <algorithm>
#include <regex>
#include <sstream>

namespace qeng::opencl {

namespace {

std::string replace(const std::string& text, const char* pattern, const char* by) {
  return std::regex_replace(text, std::regex(pattern), by);
}
bool begins(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

std::string without_comment(std::string line) {
  line = line.substr(0, line.find("//"));
  return line.substr(0, line.find_last_not_of(" \t") + 1);
}

int depth_of(const std::string& line) {
  int depth = 0;
  for (const char c : line) depth += c == '{' || c == '(' ? 1 : c == '}' || c == ')' ? -1 : 0;
  return depth;
}

// constexpr T a = 1, b = 2;
std::string constants(const std::string& text) {
  std::smatch parts;
  if (!std::regex_match(text, parts, std::regex("constexpr (\\w+) ([^({]*);\\n"))) return "";
  std::string list = parts[2], result;
  std::smatch one;
  while (std::regex_search(list, one, std::regex("(\\w+) = ([^,]+)(, )?"))) {
    result += "#define " + one[1].str() + " ((" + parts[1].str() + ")(" + one[2].str() + "))\n";
    list = one.suffix();
  }
  return result;
}

// enum class Kind : int32_t { a, b };
std::string enumeration(const std::string& text) {
  std::smatch parts;
  if (!std::regex_search(text, parts, std::regex("enum class (\\w+) : (\\w+) \\{([^}]*)\\}"))) return "";
  const std::string name = parts[1];
  return "typedef " + parts[2].str() + " " + name + ";\nenum {" + replace(parts[3], "(\\w+)", (name + "_$1").c_str()) +
         "};\n";
}

// What C writes otherwise inside of functions and structs.
std::string words(std::string text) {
  text = replace(text, "static_cast<(\\w+)>\\(", "($1)(");
  text = replace(text, "\\b(u?int\\d+_t)\\{([^{}]*)\\}", "(($1)($2))");
  text = replace(text, "\\b(b?f16)\\{", "($1){");
  text = replace(text, "\\n( +)(\\w+) = \\{", "\n$1$2 = (__typeof__($2)){");
  text = replace(text, "\\bconstexpr\\b", "const");
  text = replace(text, "\\bhalf\\b", "one_half");               // a type of OpenCL C
  return replace(text, "\\bmin\\(const ", "block_min(const ");  // a function of OpenCL C
}

}  // namespace

std::string Translator::structure(std::string text) {
  std::smatch parts;
  if (!std::regex_search(text, parts, std::regex("struct (\\w+)( : (\\w+))? \\{\\n"))) return "";
  const std::string name = parts[1], base = parts[3];
  if (base == "GridFormat") grids_.insert(name);
  if (!base.empty() || text.find("kElements") != text.npos) blocks_.insert(name);
  std::string body = parts.suffix();
  body = replace(body, " *static constexpr [^;]*;\\n", "");
  body = replace(body, " = \\{\\}", "");
  if (body.find(';') == body.rfind(';')) return "";  // no fields
  return "typedef struct " + name + " {\n" + words(body.substr(0, body.rfind('}'))) + "} " + name + ";\n";
}

std::string Translator::function(std::string text) const {
  std::smatch parts;
  if (!std::regex_search(text, parts, std::regex("QENG_HD ([\\w ]+) (\\w+)\\(([^{]*)\\) \\{"))) return "";
  const std::string returned = parts[1];
  std::string head = parts[3], body = parts.suffix();
  text = words(text);
  std::regex_search(text, parts, std::regex("QENG_HD ([\\w ]+) (\\w+)\\(([^{]*)\\) \\{"));
  const std::string name = parts[2];
  head = parts[3], body = parts.suffix();
  const bool writes = std::regex_search(head, std::regex("(^|, )\\w+& ")) && head.find("const") != head.npos;
  std::string parameters, list = head;
  std::smatch one;
  int count = 0;
  while (std::regex_search(list, one, std::regex("\\s*(const )?(\\w+)([&*]?) ?(\\w*)(, ?|$)"))) {
    const bool constant = one[1].matched, reference = one[3] == "&", pointer = one[3] == "*";
    std::string type = one[2];
    const std::string label = one[4].length() ? one[4].str() : "unnamed" + std::to_string(count);
    const bool block = reference && blocks_.count(type);
    if (block || (reference && !constant)) {
      type = (block ? "__global " : "") + std::string(constant ? "const " : "") + type + "*";
      body = replace(body, ("\\b" + label + "\\.").c_str(), (label + "->").c_str());
    } else if (pointer) {
      type = (constant && !writes ? "__global const " : constant ? "const " : "") + type + "*";
    }
    parameters += (count++ ? ", " : "") + type + " " + label;
    list = one.suffix();
    if (one[5].length() == 0) break;
  }
  body = replace(body, "return \\{", ("return (" + returned + "){").c_str());
  if (!writes) body = replace(body, "(\\n *)const (\\w+)\\* ", "$1__global const $2* ");
  return "QENG_HD " + returned + " " + name + "(" + parameters + ") {" + body;
}

std::string Translator::item(const std::string& text) {
  if (begins(text, "struct ")) return structure(text);
  if (begins(text, "enum class ")) return enumeration(text);
  if (begins(text, "constexpr ")) return constants(text);
  if (begins(text, "QENG_HD ")) return function(text);
  if (!begins(text, "template <class Block>\nrequires(Block::kFromGrid) ")) return "";
  std::string all;
  for (const std::string& grid : grids_)
    all += function(replace(text.substr(text.find("QENG_HD ")), "\\bBlock\\b", grid.c_str()));
  return all;
}

std::string Translator::translate(const std::string& header) {
  std::istringstream lines(header);
  std::string line, result, text;
  int depth = 0;
  for (bool directive = false; std::getline(lines, line);) {
    if (depth == 0 && text.empty()) {
      const bool continued = directive;
      directive = (continued || begins(line, "#")) && !line.empty() && line.back() == '\\';
      if (continued || begins(line, "#")) continue;
    }
    line = without_comment(line);
    if (text.empty() && (line.empty() || line == "}" || begins(line, "namespace "))) continue;
    text += line + "\n";
    depth += depth_of(line);
    const char last = line.empty() ? ' ' : line.back();
    const bool ends = last == ';' || last == '}' || (last == ')' && begins(text, "QENG_GRID("));
    if (depth != 0 || !ends) continue;
    result += item(text);
    text.clear();
  }
  return result;
}

}  // namespace qeng::opencl
