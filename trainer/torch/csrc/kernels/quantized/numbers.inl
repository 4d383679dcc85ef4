// Values of a 4-bit or 8-bit weight, each rounded like that of the dequantized weight.

// W = q * scale / 127, multiplied by the inverse as in bitsandbytes.
constexpr float ONE_127TH = 7.874015718698502e-3f;

// Prevents the compiler from fusing a product into a multiply-add, which would not round it.
static inline void round_here(float& x) {
#if defined(__x86_64__)
  __asm__("" : "+x"(x));
#elif defined(__aarch64__)
  __asm__("" : "+w"(x));
#else
  volatile float stored = x;
  x = stored;
#endif
}

#if defined(__AVX512F__)
static inline void round_here(vf& x) { __asm__("" : "+v"(x)); }
#endif

static inline vf round_to_half(vf x) {
  const vu u = (vu)x, sign = u & 0x80000000u;
  const vf size = (vf)(u & 0x7fffffffu);
  const vf normal = (vf)((u + 0xfffu + ((u >> 13) & 1u)) & 0xffffe000u);
  // Below the smallest normal value f16 has steps of 2^-24, which is the step of float32 between 1/2 and 1.
  const vf subnormal = (vf)((vu)((x + 0.75f) - 0.75f) | sign);
  const vf finite = size < 6.103515625e-5f ? subnormal : normal;
  return size >= 65520.0f ? (vf)(sign | 0x7f800000u) : finite;
}
static inline vf round_as(vf x, const int32_t rounds[2]) {
  for (int i = 0; i < 2; ++i) {
    if (rounds[i] == 1) x = round_to(x, bf16{});
    if (rounds[i] == 2) x = round_to_half(x);
  }
  return x;
}

static inline float scale_of(const Quantized& q, int64_t block) {
  if (q.scales) return q.scales[block];
  float product = q.scale_table[q.scale_codes[block]] * q.scale_scales[block / Quantized::SCALE_BLOCK];
  round_here(product);
  return product + q.scale_offset;
}

// Computes the values of the 16 codes in a block.
static inline void block_numbers(const Quantized& q, int64_t block, float numbers[16]) {
  const vf scale = splat(scale_of(q, block));
  for (int i = 0; i < 16; i += W) store(numbers + i, round_as(load(q.table + i) * scale, q.rounds));
}

// Loads W bytes, one per lane. Compilers turn a conversion of bytes to vectors of 32 bits into one scalar
// move per byte.
#if defined(__AVX512F__)
static inline vu load_bytes(const uint8_t* p) {
  return (vu)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline vf load_int8(const int8_t* p) {
  return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
#elif defined(__AVX2__)
static inline vu load_bytes(const uint8_t* p) {
  return (vu)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
static inline vf load_int8(const int8_t* p) {
  return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
#else
static inline vu load_bytes(const uint8_t* p) {
  typedef uint8_t vb __attribute__((vector_size(W), aligned(1), may_alias));
  const vb bytes = *reinterpret_cast<const vb*>(p);
  return __builtin_convertvector(bytes, vu);
}
static inline vf load_int8(const int8_t* p) {
  typedef int8_t vb __attribute__((vector_size(W), aligned(1), may_alias));
  const vb bytes = *reinterpret_cast<const vb*>(p);
  return __builtin_convertvector(bytes, vf);
}
#endif

// Looks up values of a block by the low 4 bits of each lane.
#if defined(__AVX512F__)
struct Numbers {
  vf all;
};
static inline Numbers numbers_of(const Quantized& q, float scale) {
  return {round_as(load(q.table) * splat(scale), q.rounds)};
}
static inline vf pick(const Numbers& t, vu codes) {
  return (vf)_mm512_permutexvar_ps((__m512i)codes, (__m512)t.all);
}
#elif defined(__AVX2__)
struct Numbers {
  vf low, high;
};
static inline Numbers numbers_of(const Quantized& q, float scale) {
  const vf s = splat(scale);
  return {round_as(load(q.table) * s, q.rounds), round_as(load(q.table + W) * s, q.rounds)};
}
static inline vf pick(const Numbers& t, vu codes) {
  const __m256 low = _mm256_permutevar8x32_ps((__m256)t.low, (__m256i)codes),
               high = _mm256_permutevar8x32_ps((__m256)t.high, (__m256i)codes);
  return (vf)_mm256_blendv_ps(low, high, (__m256)(codes << 28));
}
#else
struct Numbers {
  float all[16];
};
static inline Numbers numbers_of(const Quantized& q, float scale) {
  Numbers t;
  for (int i = 0; i < 16; i += W) store(t.all + i, round_as(load(q.table + i) * splat(scale), q.rounds));
  return t;
}
static inline vf pick(const Numbers& t, vu codes) {
  vf x = {};
  for (int i = 0; i < W; ++i) x[i] = t.all[codes[i] & 15u];
  return x;
}
#endif

static inline vf int8_numbers(const int8_t* p, int64_t n, float scale, const int32_t rounds[2]) {
  if (n >= W) return round_as(load_int8(p) * splat(scale) * splat(ONE_127TH), rounds);
  int8_t part[W] = {};
  __builtin_memcpy(part, p, size_t(n));
  return round_as(load_int8(part) * splat(scale) * splat(ONE_127TH), rounds);
}
