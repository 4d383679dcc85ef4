// The kernels for the avx2 instruction set; build.rs passes the flags, dispatch.cpp decides at run time.
#define RLT_ISA avx2
#define RLT_ISA_NAME "avx2"
#include "all.inl"
