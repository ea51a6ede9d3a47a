/* What a C99 program does with the driver: argv is a configuration, a stream of one input x and one
   output y (4096 bytes each), and nothing but hnpu.h is known. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hnpu.h"

static char* contents(const char* path, size_t* bytes) {
  FILE* file = fopen(path, "rb");
  char* data = (char*)calloc(1, 1 << 20);
  *bytes = file ? fread(data, 1, (1 << 20) - 1, file) : 0;
  if (file) fclose(file);
  return data;
}

static void must(hnpu_status status, const char* what) {
  if (status == HNPU_OK) return;
  printf("%s: %s: %s\n", what, hnpu_status_name(status), hnpu_last_error());
  exit(1);
}

int main(int argc, char** argv) {
  static uint16_t x[2048], y[64];
  size_t config_bytes, bytes;
  char *config, *stream;
  hnpu_device* device = NULL;
  hnpu_program* program = NULL;
  hnpu_capabilities_t can;
  hnpu_counters counters;
  hnpu_binding slots[2];
  uint64_t count;
  int i;

  if (argc != 3 || hnpu_abi_version() != HNPU_ABI_VERSION) return 2;
  config = contents(argv[1], &config_bytes);
  stream = contents(argv[2], &bytes);
  must(hnpu_open(config, &device), "open");
  must(hnpu_capabilities(device, &can), "capabilities");
  for (i = 0; i < 64; i++) x[i] = 0x3c00; /* 1.0 */
  for (i = 0; i < 2; i++) {
    slots[i].bytes = sizeof x;
    must(hnpu_alloc(device, sizeof x, &slots[i].address), "alloc");
  }
  must(hnpu_copy_to_device(device, slots[0].address, x, sizeof x), "copy");
  must(hnpu_load(device, stream, bytes, &program), "load");
  must(hnpu_submit(device, program, slots, 2, HNPU_TRACE), "submit");
  must(hnpu_wait(device), "wait");
  must(hnpu_read_counters(device, &counters), "counters");
  must(hnpu_read_trace(device, NULL, 0, &count), "trace");
  must(hnpu_copy_from_device(device, y, slots[1].address, sizeof y), "copy back");
  printf("%u lanes, %04x, %.0f cycles, %d entries\n", (unsigned)can.vector_lanes, (unsigned)y[63],
         counters.cycles, (int)count);
  hnpu_unload(device, program);
  must(hnpu_free(device, slots[1].address), "free");
  hnpu_close(device);
  /* Nulls are answered. */
  if (hnpu_open(NULL, &device) != HNPU_ERROR_ARGUMENT || hnpu_load(NULL, NULL, 0, NULL) != HNPU_ERROR_ARGUMENT ||
      hnpu_wait(NULL) != HNPU_ERROR_ARGUMENT || hnpu_submit(NULL, NULL, NULL, 0, 0) != HNPU_ERROR_ARGUMENT)
    return 3;
  hnpu_close(NULL);
  hnpu_unload(NULL, NULL);
  free(config);
  free(stream);
  return 0;
}
