#include "kernels/cpu/isa/table.h"

namespace qeng::isa::QENG_ISA {

void fill_activation(Table& table);
void fill_attention(Table& table);
void fill_attention_grad(Table& table);
void fill_bits(Table& table);
void fill_block_decode(Table& table);
void fill_block_dots(Table& table);
void fill_block_encode(Table& table);
void fill_block_tiles(Table& table);
void fill_causal_conv(Table& table);
void fill_dropout(Table& table);
void fill_elementwise(Table& table);
void fill_gated_delta(Table& table);
void fill_gated_delta_grad(Table& table);
void fill_gemv(Table& table);
void fill_hadamard(Table& table);
void fill_interleaved_dots(Table& table);
void fill_layer_norm(Table& table);
void fill_optimizer(Table& table);
void fill_ordered_product(Table& table);
void fill_pointwise(Table& table);
void fill_paged_attention(Table& table);
void fill_rmsnorm(Table& table);
void fill_rope(Table& table);
void fill_sign_dots(Table& table);
void fill_sign_sums(Table& table);
void fill_softmax(Table& table);

void fill(Table& table) {
  fill_activation(table);
  fill_attention(table);
  fill_attention_grad(table);
  fill_bits(table);
  fill_block_decode(table);
  fill_block_dots(table);
  fill_block_encode(table);
  fill_block_tiles(table);
  fill_causal_conv(table);
  fill_dropout(table);
  fill_elementwise(table);
  fill_gated_delta(table);
  fill_gated_delta_grad(table);
  fill_gemv(table);
  fill_hadamard(table);
  fill_interleaved_dots(table);
  fill_layer_norm(table);
  fill_optimizer(table);
  fill_ordered_product(table);
  fill_pointwise(table);
  fill_paged_attention(table);
  fill_rmsnorm(table);
  fill_rope(table);
  fill_sign_dots(table);
  fill_sign_sums(table);
  fill_softmax(table);
}

}  // namespace qeng::isa::QENG_ISA
