# The instruction sets of aarch64, slowest first (kernels/cpu/isa_aarch64.h). neon fuses products and sums as avx2 does;
# CMakeLists.txt forbids the rest of the program to.
set(QENG_ISAS baseline neon dotprod armv86)
set(QENG_INTRINSICS <arm_neon.h>)
set(QENG_ISA_SOURCES_neon ${QENG_ISA})
set(QENG_ISA_MACROS_neon QENG_ISA_neon)
# Processors from Armv8.2 on mostly have one instruction for the products of bytes: neon but for their loops.
set(QENG_ISA_SOURCES_dotprod kernels/cpu/isa/blocks/block_dots.cpp kernels/cpu/isa/blocks/block_tiles.cpp
    kernels/cpu/isa/blocks/interleaved_dots.cpp kernels/cpu/isa/signs/sign_dots.cpp)
set(QENG_ISA_MACROS_dotprod QENG_ISA_neon QENG_DOTPROD)
# Those from Armv8.6 on have some for products of small matrices, of bytes and of bf16.
set(QENG_ISA_SOURCES_armv86 kernels/cpu/isa/bf16_tiles_bfmmla.cpp kernels/cpu/isa/blocks/block_tiles.cpp
    kernels/cpu/isa/blocks/interleaved_dots.cpp)
set(QENG_ISA_MACROS_armv86 ${QENG_ISA_MACROS_dotprod} QENG_I8MM)
set(QENG_ISA_FLAGS_neon -ffp-contract=fast)
set(QENG_ISA_FLAGS_dotprod ${QENG_ISA_FLAGS_neon} -march=armv8.2-a+dotprod)
set(QENG_ISA_FLAGS_armv86 ${QENG_ISA_FLAGS_neon} -march=armv8.2-a+dotprod+i8mm+bf16)
foreach(isa neon dotprod armv86)
  set(QENG_ISA_LEVEL_${isa} -O3)
endforeach()
