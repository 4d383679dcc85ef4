// Vectors of the compiled instruction set by compiler extensions, so that one source serves SSE2, NEON, AVX2
// and AVX-512. Everything is static or a template inside the namespace of an instruction set, as kernels.h
// explains. kernels/all.inl includes this file inside that namespace, and the standard headers outside.

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4)));
typedef uint16_t vh __attribute__((vector_size(W * 2)));
typedef float vf_loose __attribute__((vector_size(W * 4), aligned(4), may_alias));
typedef uint16_t vh_loose __attribute__((vector_size(W * 2), aligned(2), may_alias));

struct bf16 {
  uint16_t bits;
};

static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
// Subtracting zero changes no value and compiles to a plain broadcast. Adding zero would turn -0 into 0 and
// cost an addition.
static inline vf splat(float x) { return x - vf{}; }
static inline vf vmax(vf a, vf b) { return a > b ? a : b; }

static inline vf load(const float* p) { return *reinterpret_cast<const vf_loose*>(p); }
static inline void store(float* p, vf x) { *reinterpret_cast<vf_loose*>(p) = x; }

static inline vf load(const bf16* p) {
  vh h = *reinterpret_cast<const vh_loose*>(p);
  return (vf)(__builtin_convertvector(h, vu) << 16);
}

// Rounds to nearest even. The lower halves of the result are zero, and NaN remains NaN.
static inline vu rounded_bits(vf x) {
  const vu u = (vu)x, nan = (vu)(x != x);
  return (nan & 0x7fc00000u) | (~nan & (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}
static inline vh to_bf16(vf x) { return __builtin_convertvector(rounded_bits(x) >> 16, vh); }
static inline void store(bf16* p, vf x) { *reinterpret_cast<vh_loose*>(p) = to_bf16(x); }

static inline float to_float(float x) { return x; }
static inline float to_float(bf16 x) {
  uint32_t u = uint32_t(x.bits) << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}

// Loads and stores of the first n elements, 0 < n < W. Other lanes are zero, and no memory outside of the n
// elements is accessed.
#if defined(__AVX512F__)
static inline __mmask16 lanes(int64_t n) { return __mmask16((1u << n) - 1u); }
static inline vf load_part(const float* p, int64_t n) { return (vf)_mm512_maskz_loadu_ps(lanes(n), p); }
static inline void store_part(float* p, vf x, int64_t n) { _mm512_mask_storeu_ps(p, lanes(n), (__m512)x); }
static inline vf load_part(const bf16* p, int64_t n) {
  vh h = (vh)_mm256_maskz_loadu_epi16(lanes(n), p);
  return (vf)(__builtin_convertvector(h, vu) << 16);
}
static inline void store_part(bf16* p, vf x, int64_t n) {
  _mm256_mask_storeu_epi16(p, lanes(n), (__m256i)to_bf16(x));
}
#else
#if defined(__AVX2__)
static inline __m256i lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf load_part(const float* p, int64_t n) { return (vf)_mm256_maskload_ps(p, lanes(n)); }
static inline void store_part(float* p, vf x, int64_t n) { _mm256_maskstore_ps(p, lanes(n), (__m256)x); }
#else
static inline vf load_part(const float* p, int64_t n) {
  vf x = {};
  for (int64_t i = 0; i < n; ++i) x[i] = p[i];
  return x;
}
static inline void store_part(float* p, vf x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = x[i];
}
#endif
static inline vf load_part(const bf16* p, int64_t n) {
  vh h = {};
  __builtin_memcpy(&h, p, size_t(n) * 2);
  return (vf)(__builtin_convertvector(h, vu) << 16);
}
static inline void store_part(bf16* p, vf x, int64_t n) {
  vh h = to_bf16(x);
  __builtin_memcpy(p, &h, size_t(n) * 2);
}
#endif

// Rounds to a dtype and converts back to float.
static inline vf round_to(vf x, float) { return x; }
static inline vf round_to(vf x, bf16) { return (vf)rounded_bits(x); }

#if defined(__AVX512F__)
static inline float sum_of(vf x) { return _mm512_reduce_add_ps((__m512)x); }
static inline float max_of(vf x) { return _mm512_reduce_max_ps((__m512)x); }
#else
static inline float sum_of(vf x) {
  float s[W];
  store(s, x);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) s[i] += s[i + half];
  return s[0];
}
static inline float max_of(vf x) {
  float s[W];
  store(s, x);
  for (int half = W / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) s[i] = s[i] > s[i + half] ? s[i] : s[i + half];
  return s[0];
}
#endif
// Sums the lanes of four vectors at once, which costs little more than one sum.
static inline void sums_of(const vf x[4], float* out) {
#if defined(__AVX512F__)
  const auto pair = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  };
  const __m512d ab = _mm512_castps_pd(pair((__m512)x[0], (__m512)x[1]));
  const __m512d cd = _mm512_castps_pd(pair((__m512)x[2], (__m512)x[3]));
  const __m512 quads = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                                     _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(quads), _mm512_extractf32x8_ps(quads, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif defined(__AVX2__)
  const __m256 ab = _mm256_hadd_ps((__m256)x[0], (__m256)x[1]),
               cd = _mm256_hadd_ps((__m256)x[2], (__m256)x[3]);
  const __m256 quads = _mm256_hadd_ps(ab, cd);
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
#else
  for (int i = 0; i < 4; ++i) out[i] = sum_of(x[i]);
#endif
}
// Transposes W vectors as a square matrix.
#if defined(__AVX512F__)
static inline void transpose(vf x[16]) {
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps((__m512)x[i], (__m512)x[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps((__m512)x[i], (__m512)x[i + 1]);
  }
  const auto low = [](__m512 p, __m512 q) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(p), _mm512_castps_pd(q)));
  };
  const auto high = [](__m512 p, __m512 q) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(p), _mm512_castps_pd(q)));
  };
  for (int i = 0; i < 16; i += 4)
    for (int k = 0; k < 2; ++k) {
      b[i + 2 * k] = low(a[i + k], a[i + 2 + k]);
      b[i + 2 * k + 1] = high(a[i + k], a[i + 2 + k]);
    }
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; k += 8) {
      a[k + i] = _mm512_shuffle_f32x4(b[k + i], b[k + 4 + i], 0x88);
      a[k + 4 + i] = _mm512_shuffle_f32x4(b[k + i], b[k + 4 + i], 0xdd);
    }
  for (int i = 0; i < 8; ++i) {
    x[i] = (vf)_mm512_shuffle_f32x4(a[i], a[i + 8], 0x88);
    x[i + 8] = (vf)_mm512_shuffle_f32x4(a[i], a[i + 8], 0xdd);
  }
}
#endif
static inline vf vsqrt(vf x) {
#if defined(__AVX512F__)
  return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
  return (vf)_mm256_sqrt_ps((__m256)x);
#else
  for (int i = 0; i < W; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}
static inline vf iota() {
  vf x = {};
  for (int i = 0; i < W; ++i) x[i] = float(i);
  return x;
}

// e^x to about 1 ulp: 2^n * p(r), Cephes' coefficients. Zero below -87.33, saturated at 2.4e38, NaN for NaN.
static inline vf vexp(vf x) {
  const vi tiny = x < -87.33f;
  x = x > 88.37f ? splat(88.37f) : x;
  const vf magic = splat(12582912.0f);
  vf n = (x * 1.44269504088896341f + magic) - magic;
  vf r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  vi e = (__builtin_convertvector(n, vi) + 127) << 23;
  return (vf)((vi)(p * (vf)e) & ~tiny);
}
static inline float exp_one(float x) { return vexp(splat(x))[0]; }

// tanh x to about 2 ulp: Cephes' polynomial near zero, where the formula by exponentials cancels.
static inline vf vtanh(vf x) {
  const vf z = x * x;
  vf p = splat(-5.70498872745e-3f);
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  return z < 0.390625f ? p * z * x + x : 1.0f - 2.0f / (vexp(2.0f * x) + 1.0f);
}

template <class T>
static inline T* row_of(const Rows& rows, int64_t r) {
  return static_cast<T*>(rows.data) + (r / rows.inner) * rows.outer_stride +
         (r % rows.inner) * rows.inner_stride;
}

template <class T>
static inline vf load_at(const T* p, int64_t i, int64_t n) {
  return n - i >= W ? load(p + i) : load_part(p + i, n - i);
}
template <class T>
static inline void store_at(T* p, vf x, int64_t i, int64_t n) {
  if (n - i >= W)
    store(p + i, x);
  else
    store_part(p + i, x, n - i);
}
