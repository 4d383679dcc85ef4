// Instructions of the CPU for which a kernel is compiled. Included outside of any namespace.
#pragma once

#if defined(__x86_64__)
// GCC 12's own intrinsics leave lanes undefined on purpose, and then warn about it wherever they are inlined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#endif
