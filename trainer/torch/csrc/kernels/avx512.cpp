// The kernels for the avx512 instruction set; build.rs passes the flags, dispatch.cpp decides at run time.
#define RLT_ISA avx512
#define RLT_ISA_NAME "avx512"
#include "all.inl"
