// Kernels as the device has them. A source is a file of this folder (NAME.cl), perhaps with text made for one operation
// at its end, and definitions in front: the element types, and what else a kernel is compiled apart for. It is compiled
// by the driver when it is first asked for; drivers keep what they compiled on the disk.
//
// A source may `#include` files of this folder and of kernels/math, which the Translator makes C of. Of each element
// type T, plain or a block format, it has load(T, p, i), element i of a dense array as f32, of plain ones also
// store(T, p, i, x). Of block formats: code_of(T, p, i), scale_of(T, p, i) and min_of(T, p, i) of element i, and
// OF(T, GROUP), the elements that share the latter two, and OF(T, HAS_MIN).
#pragma once
#include <CL/cl.h>

#include <initializer_list>
#include <map>
#include <string>
#include <utility>

namespace qeng::opencl {

struct EmbeddedFile {
  const char *path, *text;
};
extern const EmbeddedFile kEmbeddedFiles[];  // ended by nulls

using Definitions = std::initializer_list<std::pair<const char*, std::string>>;

class Programs {
 public:
  Programs(cl_context context, cl_device_id device);
  ~Programs();
  Programs(const Programs&) = delete;
  // The kernel `name` of NAME.cl. Throws Error("opencl") with what the driver's compiler says.
  cl_kernel kernel(const char* file, const std::string& name, Definitions definitions, const std::string& end = "");

 private:
  cl_program compile(const std::string& text, const char* file);
  cl_context context_;
  cl_device_id device_;
  std::string options_;
  std::map<std::string, cl_program> programs_;  // by file, definitions and text
  std::map<std::string, cl_kernel> kernels_;    // and by their names
};

}  // namespace qeng::opencl
