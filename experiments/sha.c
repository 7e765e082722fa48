#include <stdio.h>
#include <time.h>
#include "../runtime_c/src/sha256.h"
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
int main(void) {
    static unsigned char data[1 << 20], digest[32];
    for (int k = 0; k < 3; ++k) { double t = now(); aotci_sha256(data, 4096, digest); printf("4 KiB %.2f us\n", (now() - t) / 1e3); }
    for (int k = 0; k < 2; ++k) { double t = now(); aotci_sha256(data, 1024, digest); printf("1 KiB %.2f us\n", (now() - t) / 1e3); }
    double t = now(); for (int k = 0; k < 20; ++k) aotci_sha256(data, sizeof data, digest); printf("%.2f GB/s\n", 20 * sizeof data / (now() - t));
}
