// Every group of bindings, called once for each new Lua state. To add a group: declare it here, list it in state.cpp.
#pragma once
#include <lua.hpp>

namespace qeng {
void register_host(lua_State* L);         // bind_host.cpp: time, errors, terminal, Ctrl-C
void register_json(lua_State* L);         // bind_json.cpp
void register_yaml(lua_State* L);         // bind_yaml.cpp
void register_unicode(lua_State* L);      // bind_unicode.cpp: text as Python has it
void register_fs(lua_State* L);           // bind_fs.cpp
void register_runtime(lua_State* L);      // bind_runtime.cpp: runtimes, devices, memory
void register_tensor(lua_State* L);       // bind_tensor.cpp
void register_describe(lua_State* L);     // bind_describe.cpp: Tensor:describe
void register_view(lua_State* L);         // bind_view.cpp: Tensor:view
void register_autograd(lua_State* L);     // bind_autograd.cpp: differentiable functions, tape, scopes
void register_expression(lua_State* L);   // bind_expression.cpp: arithmetic on tensors
void register_shapes(lua_State* L);       // bind_shapes.cpp: slices, transposes, elements by index, products
void register_program(lua_State* L);      // bind_program.cpp: programs, traces, profiles, AdamW
void register_ranks(lua_State* L);        // bind_ranks.cpp: the processes of a job
void register_rehearsal(lua_State* L);    // bind_rehearsal.cpp: q.rehearsal.run
void register_quantize(lua_State* L);     // bind_quantize.cpp: block formats
void register_onebit(lua_State* L);       // bind_onebit.cpp: one-bit weights
void register_weights(lua_State* L);      // bind_weights.cpp: open files of weights
void register_safetensors(lua_State* L);  // bind_safetensors.cpp
void register_npy(lua_State* L);          // bind_npy.cpp
void register_gguf(lua_State* L);         // bind_gguf.cpp
void register_stream(lua_State* L);       // bind_stream.cpp
void register_tokenizer(lua_State* L);    // bind_tokenizer.cpp
void register_sampler(lua_State* L);      // bind_sampler.cpp
void register_grammar(lua_State* L);      // bind_grammar.cpp
void register_sandbox(lua_State* L);      // bind_sandbox.cpp
void register_process(lua_State* L);      // bind_process.cpp: q.host.process
void register_generate(lua_State* L);     // bind_generate.cpp: operations of inference, page pools
void register_packets(lua_State* L);      // bind_packets.cpp
void register_batches(lua_State* L);      // bind_batches.cpp
void register_hub(lua_State* L);          // bind_hub.cpp
void register_blocks(lua_State* L);       // bind_blocks.cpp: files between peers, block by block
void register_peers(lua_State* L);        // bind_peers.cpp: other machines, and keys
void register_http(lua_State* L);         // bind_http.cpp: the listener of a server
void register_statistics(lua_State* L);   // bind_statistics.cpp
void register_convert(lua_State* L);      // bind_convert.cpp
void register_line_editor(lua_State* L);  // bind_line_editor.cpp
}  // namespace qeng
