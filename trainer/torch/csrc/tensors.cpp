// Everything that needs torch's headers, as one translation unit: reading the headers takes three quarters of the
// time that these files take to compile one by one.
#include "attention.cpp"
#include "attention_cuda.cpp"
#include "collectives.cpp"
#include "dispatch.cpp"
#include "experts.cpp"
#include "fused.cpp"
#include "head.cpp"
#include "linear.cpp"
#include "nccl.cpp"
#include "resting.cpp"
#include "runtime.cpp"
#include "streams.cpp"
