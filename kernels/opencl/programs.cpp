#include "kernels/opencl/programs.h"

#include <cxxabi.h>

#include <cstring>
#include <set>
#include <sstream>
#include <typeinfo>
#include <utility>

#include "kernels/math/blocks/with_block.h"
#include "kernels/opencl/opencl.h"
#include "kernels/opencl/translate.h"
#include "kernels/view.h"

namespace qeng::opencl {

namespace {

const EmbeddedFile* find_file(const std::string& path) {
  for (const EmbeddedFile* file = kEmbeddedFiles; file->path; ++file)
    if (path == file->path) return file;
  return nullptr;
}
const char* file_text(const std::string& path) {
  if (const EmbeddedFile* file = find_file(path)) return file->text;
  fail("internal", "opencl: there is no ", path);
}

// A source with what it includes, each file once: of kernels/opencl as it is, headers translated.
class Reader {
 public:
  std::string text;
  void read(const std::string& path) {
    if (!seen_.insert(path).second) return;
    const std::string source = file_text(path);
    const bool header = path.size() > 2 && path.compare(path.size() - 2, 2, ".h") == 0;
    std::string own;
    std::istringstream lines(source);
    for (std::string line; std::getline(lines, line);) {
      const std::string include = "#include \"";
      if (line.rfind(include, 0) != 0) {
        own += line + "\n";
        continue;
      }
      const std::string included = line.substr(include.size(), line.rfind('"') - include.size());
      if (!find_file(included) || included == "kernels/math/host_device.h") continue;
      if (!header) text += std::exchange(own, "");
      read(included);
    }
    text += header ? translated(path, own) : own;
  }

 private:
  static const std::string& translated(const std::string& path, const std::string& header) {
    static Translator translator;
    static std::map<std::string, std::string> done;
    std::string& result = done[path];
    if (result.empty()) result = translator.translate(header);
    return result;
  }
  std::set<std::string> seen_;
};

// kernels/math/blocks/grids.h reads its tables when it is compiled, which C cannot.
void add_grid(std::ostream& out, const char* name, int entries, uint32_t (*word)(int)) {
  out << "__constant ushort " << name << "_grid[" << entries << "] = {";
  for (int i = 0; i < entries; ++i) out << word(i) << ",";
  out << "};\nQENG_HD uint " << name << "_word(int i) { return " << name << "_grid[i]; }\n";
}

// What programs.h says of a block format: its struct by name and its numbers, for functions of blocks.cl.
std::string format_text(DType dtype) {
  return blocks::with_block(dtype, [&](auto tag) {
    using Block = decltype(tag);
    char* whole = abi::__cxa_demangle(typeid(Block).name(), nullptr, nullptr, nullptr);
    const std::string name = std::strrchr(whole, ':') + 1;
    std::free(whole);
    std::ostringstream out;
    out << "QENG_FORMAT(" << dtype_name(dtype) << ", " << name << ", " << Block::kElements << ", " << Block::kGroup
        << ", " << (Block::kHasMin ? "block_min" : "no_min") << ")\n"
        << "#define GROUP_" << dtype_name(dtype) << " " << Block::kGroup << "\n"
        << "#define HAS_MIN_" << dtype_name(dtype) << " " << Block::kHasMin << "\n";
    return out.str();
  });
}

// The formulas of all formats, then those of the ones that the definitions name.
void add_formats(Reader& reader, Definitions definitions) {
  std::string named;
  std::set<std::string> seen;
  for (const auto& [name, value] : definitions)
    for (int i = 0; i < kDTypeCount; ++i) {
      const auto dtype = static_cast<DType>(i);
      if (is_block(dtype) && value == dtype_name(dtype) && seen.insert(value).second) named += format_text(dtype);
    }
  if (named.empty()) return;
  std::ostringstream grids;
#define QENG_ADD_GRID(name, entries) add_grid(grids, #name, entries, &blocks::name##_word)
  QENG_ADD_GRID(iq2_xxs, 256), QENG_ADD_GRID(iq2_xs, 512), QENG_ADD_GRID(iq2_s, 1024);
  QENG_ADD_GRID(iq3_xxs, 256), QENG_ADD_GRID(iq3_s, 512), QENG_ADD_GRID(iq1, 2048);
#undef QENG_ADD_GRID
  reader.text += grids.str();
  reader.read("kernels/math/blocks/with_block.h");
  reader.read("kernels/opencl/blocks.cl");
  reader.text += named;
}

}  // namespace

Programs::Programs(cl_context context, cl_device_id device) : context_(context), device_(device) {
  cl_device_fp_config config = 0;
  clGetDeviceInfo(device, CL_DEVICE_SINGLE_FP_CONFIG, sizeof config, &config, nullptr);
  // C 1.2, which every driver has. Quotients as everywhere, so that codes of activations are.
  options_ = "-cl-std=CL1.2";
  if (config & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) options_ += " -cl-fp32-correctly-rounded-divide-sqrt";
}

Programs::~Programs() {
  for (const auto& [key, kernel] : kernels_) clReleaseKernel(kernel);
  for (const auto& [key, program] : programs_) clReleaseProgram(program);
}

cl_kernel Programs::kernel(const char* file, const std::string& name, Definitions definitions, const std::string& end) {
  std::string lines;
  for (const auto& [label, value] : definitions) lines += std::string("#define ") + label + " " + value + "\n";
  const std::string key = file + ("\n" + lines) + end;
  cl_kernel& kernel = kernels_[name + " of " + key];
  if (kernel) return kernel;
  cl_program& program = programs_[key];
  if (!program) {
    Reader reader;
    reader.read("kernels/opencl/common.cl");
    add_formats(reader, definitions);
    reader.text += lines;
    reader.read(std::string("kernels/opencl/") + file);
    program = compile(reader.text + end, file);
  }
  cl_int status = 0;
  kernel = clCreateKernel(program, name.c_str(), &status);
  check_cl(status, name.c_str());
  return kernel;
}

cl_program Programs::compile(const std::string& text, const char* file) {
  const char* source = text.c_str();
  cl_int status = 0;
  cl_program program = clCreateProgramWithSource(context_, 1, &source, nullptr, &status);
  check_cl(status, "creating a program");
  if (clBuildProgram(program, 1, &device_, options_.c_str(), nullptr, nullptr) == CL_SUCCESS) return program;
  size_t size = 0;
  clGetProgramBuildInfo(program, device_, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
  std::string log(size, ' ');
  clGetProgramBuildInfo(program, device_, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
  clReleaseProgram(program);
  fail("opencl", "opencl: the driver does not compile ", file, ": ", log);
}

}  // namespace qeng::opencl
