/* The check of an exported library that Python's load() makes, for C11 and C++: is every byte of code and
 * constants what was exported?  Include it in one file; it needs nothing but the C library.
 *
 *   char message[512];
 *   if (hetero_tvm_verify("./model.so", message, sizeof(message)) != 0) ... message says why
 *
 * Ask before dlopen: a damaged library may run code as it is loaded.  Several GB/s on one core.  A library of
 * an older release, which has no checksum, passes.  It is a guard against damage, not against intent.
 */
#ifndef HETERO_TVM_VERIFY_H_
#define HETERO_TVM_VERIFY_H_

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HETERO_SUM_SIZE = 16, HETERO_SUM_MAGIC = 19, HETERO_ELF_HEADER = 64, HETERO_LANES = 8192 };

/* ---- BLAKE2b (RFC 7693), without a key ---- */

typedef struct {
  uint64_t h[8], count;
  unsigned char buffer[128];
  size_t used;
} HeteroHash;

static inline uint64_t hetero_rotate(uint64_t x, int by) { return x >> by | x << (64 - by); }

static inline void hetero_hash_block(HeteroHash* s, int last) {
  static const uint64_t iv[8] = {0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u,
                                 0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u};
  static const unsigned char sigma[10][16] = {
      {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
      {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
      {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
      {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
      {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};
  static const unsigned char mix[8][4] = {{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15},
                                          {0, 5, 10, 15}, {1, 6, 11, 12}, {2, 7, 8, 13}, {3, 4, 9, 14}};
  uint64_t v[16], m[16];
  memcpy(m, s->buffer, sizeof(m));
  for (int i = 0; i < 8; ++i) {
    v[i] = s->h[i];
    v[i + 8] = iv[i];
  }
  v[12] ^= s->count;
  if (last) v[14] = ~v[14];
  for (int round = 0; round < 12; ++round)
    for (int i = 0; i < 8; ++i) {
      uint64_t *a = &v[mix[i][0]], *b = &v[mix[i][1]], *c = &v[mix[i][2]], *d = &v[mix[i][3]];
      const unsigned char* order = sigma[round % 10] + 2 * i;
      *a += *b + m[order[0]];
      *d = hetero_rotate(*d ^ *a, 32);
      *c += *d;
      *b = hetero_rotate(*b ^ *c, 24);
      *a += *b + m[order[1]];
      *d = hetero_rotate(*d ^ *a, 16);
      *c += *d;
      *b = hetero_rotate(*b ^ *c, 63);
    }
  for (int i = 0; i < 8; ++i) s->h[i] ^= v[i] ^ v[i + 8];
}

static inline void hetero_hash_start(HeteroHash* s) {
  static const uint64_t iv[8] = {0x6a09e667f3bcc908u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u,
                                 0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u};
  memcpy(s->h, iv, sizeof(iv));
  s->h[0] ^= 0x01010000u ^ HETERO_SUM_SIZE;
  s->count = s->used = 0;
}

static inline void hetero_hash_add(HeteroHash* s, const void* data, size_t size) {
  const unsigned char* at = (const unsigned char*)data;
  while (size > 0) {
    if (s->used == sizeof(s->buffer)) { /* a full block is only the last one if nothing follows */
      s->count += s->used;
      hetero_hash_block(s, 0);
      s->used = 0;
    }
    size_t part = sizeof(s->buffer) - s->used;
    if (part > size) part = size;
    memcpy(s->buffer + s->used, at, part);
    s->used += part;
    at += part;
    size -= part;
  }
}

static inline void hetero_hash_end(HeteroHash* s, unsigned char* sum) {
  s->count += s->used;
  memset(s->buffer + s->used, 0, sizeof(s->buffer) - s->used);
  hetero_hash_block(s, 1);
  memcpy(sum, s->h, HETERO_SUM_SIZE);
}

/* ---- the sum of what the loader maps ---- */

static inline uint64_t hetero_number(const unsigned char* at, int bytes) {
  uint64_t value = 0;
  while (bytes-- > 0) value = value << 8 | at[bytes];
  return value;
}

/* Words of 64 bits go to lanes of a polynomial; then the lanes, and what fills no block, are hashed. */
static inline void hetero_sum_part(HeteroHash* s, const unsigned char* data, uint64_t size, uint64_t* lanes) {
  const uint64_t factor = 0x9E3779B97F4A7C15u, block = 8 * HETERO_LANES, whole = size / block * block;
  hetero_hash_add(s, &size, sizeof(size));
  memset(lanes, 0, block);
  for (uint64_t at = 0; at < whole; at += block)
    for (int i = 0; i < HETERO_LANES; ++i) {
      uint64_t word;
      memcpy(&word, data + at + 8 * i, sizeof(word));
      lanes[i] = lanes[i] * factor + word;
    }
  hetero_hash_add(s, lanes, block);
  hetero_hash_add(s, data + whole, size - whole);
}

/* Offset of the checksum: by the section table, else (it was stripped) by the marker.  0: there is none;
 * -1: the file is damaged. */
static inline int64_t hetero_sum_field(const unsigned char* data, uint64_t size) {
  static const char magic[] = "\x89hetero_tvm" "-sum\r\n\x1a\n", name[] = ".hetero_sum";
  const uint64_t table = hetero_number(data + 40, 8), entry = hetero_number(data + 58, 2);
  const uint64_t count = hetero_number(data + 60, 2), names_index = hetero_number(data + 62, 2);
  uint64_t at = 0;
  if (table && count) {
    if (entry < 64 || table > size || entry * count > size - table || names_index >= count) return -1;
    const unsigned char* strings = data + table + names_index * entry;
    const uint64_t names = hetero_number(strings + 24, 8), names_size = hetero_number(strings + 32, 8);
    if (names > size || names_size > size - names) return -1;
    for (uint64_t i = 0; i < count && !at; ++i) {
      const unsigned char* header = data + table + i * entry;
      const uint64_t label = hetero_number(header, 4);
      if (label + sizeof(name) <= names_size && memcmp(data + names + label, name, sizeof(name)) == 0)
        at = hetero_number(header + 24, 8);
    }
  }
  if (at) {
    if (at > size || size - at < HETERO_SUM_MAGIC + HETERO_SUM_SIZE) return -1;
    return memcmp(data + at, magic, HETERO_SUM_MAGIC) == 0 ? (int64_t)(at + HETERO_SUM_MAGIC) : -1;
  }
  for (at = 0; at + HETERO_SUM_MAGIC + HETERO_SUM_SIZE <= size; ++at)
    if (data[at] == 0x89 && memcmp(data + at, magic, HETERO_SUM_MAGIC) == 0) return (int64_t)(at + HETERO_SUM_MAGIC);
  return 0;
}

/* 1: right, 0: wrong, -1: the file is cut off. */
static inline int hetero_sum_agrees(const unsigned char* data, uint64_t size) {
  const int64_t field = hetero_sum_field(data, size);
  if (field <= 0) return field == 0 ? 1 : -1;
  const uint64_t table = hetero_number(data + 32, 8), entry = hetero_number(data + 54, 2);
  const uint64_t count = hetero_number(data + 56, 2), low = (uint64_t)field, high = low + HETERO_SUM_SIZE;
  if (entry < 56 || table > size || entry * count > size - table) return -1;
  uint64_t* lanes = (uint64_t*)malloc(8 * HETERO_LANES);
  if (!lanes) return 0;
  HeteroHash hash;
  hetero_hash_start(&hash);
  int fine = 1;
  for (uint64_t i = 0; i < count && fine == 1; ++i) {
    const unsigned char* header = data + table + i * entry;
    uint64_t start = hetero_number(header + 8, 8), length = hetero_number(header + 32, 8);
    if (hetero_number(header, 4) != 1) continue;
    if (start > size || length > size - start) {
      fine = -1;
      break;
    }
    const uint64_t stop = start + length;
    /* The ELF header names the section table, which `strip` moves. */
    if (start < HETERO_ELF_HEADER) start = HETERO_ELF_HEADER;
    const uint64_t first_stop = stop < low ? stop : low, second_start = start > high ? start : high;
    if (start < first_stop) hetero_sum_part(&hash, data + start, first_stop - start, lanes);
    if (second_start < stop) hetero_sum_part(&hash, data + second_start, stop - second_start, lanes);
  }
  free(lanes);
  if (fine != 1) return fine;
  unsigned char sum[HETERO_SUM_SIZE];
  hetero_hash_end(&hash, sum);
  return memcmp(sum, data + field, HETERO_SUM_SIZE) == 0;
}

/* 0 when the library is what was exported; else 1, with a sentence in `message` (`size` bytes, may be 0).
 * HETERO_TVM_VERIFY=0 in the environment leaves the check out, as in Python. */
static inline int hetero_tvm_verify(const char* path, char* message, size_t size) {
  const char* wanted = getenv("HETERO_TVM_VERIFY");
  const char* why = NULL;
  if (message && size) message[0] = '\0';
  if (wanted && strcmp(wanted, "0") == 0) return 0;
  struct stat status;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0 || fstat(file, &status) != 0) {
    why = strerror(errno);
  } else if (S_ISDIR(status.st_mode)) {
    why = "it is a folder: name the .so in it";
  } else if (!S_ISREG(status.st_mode) || status.st_size < HETERO_ELF_HEADER) {
    why = "it is not a shared library";
  } else {
    void* data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (data == MAP_FAILED) {
      why = strerror(errno);
    } else {
      const unsigned char* bytes = (const unsigned char*)data;
      if (memcmp(bytes, "\x7f" "ELF\x02\x01", 6) != 0) {
        why = "it is not a 64-bit shared library";
      } else {
        const int agrees = hetero_sum_agrees(bytes, (uint64_t)status.st_size);
        if (agrees < 0) why = "it is cut off or damaged; copy or export it again";
        if (agrees == 0)
          why = "it is damaged: code or constants are not what was exported (wrong checksum); copy or export it again";
      }
      munmap(data, (size_t)status.st_size);
    }
  }
  if (file >= 0) close(file);
  if (why && message && size) snprintf(message, size, "%.300s: %.200s", path, why);
  return why != NULL;
}

#endif /* HETERO_TVM_VERIFY_H_ */
