# The instruction sets of x86-64, slowest first (kernels/cpu/isa_x86_64.h).
set(QENG_ISAS baseline avx2 avx512 avx512vnni avx512gfni amx)
set(QENG_INTRINSICS <immintrin.h>)
set(QENG_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(QENG_ISA_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mbmi2 -mprefer-vector-width=512)
set(QENG_ISA_FLAGS_avx512vnni ${QENG_ISA_FLAGS_avx512} -mavx512vnni)
foreach(isa avx2 avx512)
  set(QENG_ISA_SOURCES_${isa} ${QENG_ISA})
  set(QENG_ISA_MACROS_${isa} QENG_ISA_${isa})
endforeach()
foreach(isa avx2 avx512 avx512vnni avx512gfni amx)
  set(QENG_ISA_LEVEL_${isa} -O3)
endforeach()
# Processors with VNNI have one instruction for the products of bytes: avx512 but for the loops of blocks.
set(QENG_ISA_SOURCES_avx512vnni kernels/cpu/isa/blocks/block_dots.cpp kernels/cpu/isa/blocks/block_tiles.cpp
    kernels/cpu/isa/blocks/interleaved_dots.cpp)
set(QENG_ISA_MACROS_avx512vnni QENG_ISA_avx512 QENG_VNNI)
# Those with GFNI have one for the bits of bytes.
set(QENG_ISA_FLAGS_avx512gfni ${QENG_ISA_FLAGS_avx512vnni} -mgfni)
set(QENG_ISA_SOURCES_avx512gfni kernels/cpu/isa/signs/sign_dots.cpp)
set(QENG_ISA_MACROS_avx512gfni ${QENG_ISA_MACROS_avx512vnni} QENG_GFNI)
# Those with AMX have some for tiles of bytes, and of bf16.
set(QENG_ISA_FLAGS_amx ${QENG_ISA_FLAGS_avx512vnni} -mamx-tile -mamx-int8 -mamx-bf16)
set(QENG_ISA_SOURCES_amx kernels/cpu/isa/bf16_tiles_amx.cpp kernels/cpu/isa/blocks/block_tiles.cpp)
set(QENG_ISA_MACROS_amx ${QENG_ISA_MACROS_avx512vnni} QENG_AMX)
