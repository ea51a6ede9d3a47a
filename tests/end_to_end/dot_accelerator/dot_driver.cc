// The driver of the dot-product engine: what a vendor's library would do.
extern "C" int dot_accelerate(const float* x, const float* w, const float* bias, float* y, int m, int n, int k,
                              int biased, int burst) {
  for (int j0 = 0; j0 < n; j0 += burst)
    for (int i = 0; i < m; ++i)
      for (int j = j0; j < n && j < j0 + burst; ++j) {
        float sum = biased ? bias[j] : 0.0f;
        for (int r = 0; r < k; ++r) sum += x[(long)i * k + r] * w[(long)j * k + r];
        y[(long)i * n + j] = sum;
      }
  return 0;
}
