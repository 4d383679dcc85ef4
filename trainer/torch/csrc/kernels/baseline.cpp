// The kernels for the baseline instruction set; build.rs passes the flags, dispatch.cpp decides at run time.
#define RLT_ISA baseline
#define RLT_ISA_NAME "baseline"
#include "all.inl"
