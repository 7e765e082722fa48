/* cap.c: which calls of a first launch a global capture of another thread forbids, or is made invalid by. cap WAY CUBIN SYMBOL LAUNCH */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static int (*find)(const char *, void **, int, uint64_t, int *);
static void *entry(const char *n) { void *f = NULL; int q; return find(n, &f, 12040, 0, &q) ? NULL : f; }
#define CALL(name, types, ...) ({ int(*f) types = (int(*) types)(uintptr_t)entry(#name); f ? f(__VA_ARGS__) : -1; })
static unsigned grid[3], threads, shared; static unsigned char params[4096]; static size_t pb; static unsigned ptrs[64], npt;
static void *context, *sa, *sb; static pthread_barrier_t bar;
static void *captures(void *x) {
    (void)x;
    CALL(cuCtxSetCurrent, (void *), context);
    int r = CALL(cuStreamBeginCapture, (void *, int), sa, 0);
    printf("begin %d, ", r);
    pthread_barrier_wait(&bar);
    int st; uint64_t id;
    for (int i = 0; i < 4; ++i) { pthread_barrier_wait(&bar); r = CALL(cuStreamIsCapturing, (void *, int *), sa, &st); printf("capture %d status %d; ", r, st); pthread_barrier_wait(&bar); }
    (void)id;
    void *graph = NULL;
    r = CALL(cuStreamEndCapture, (void *, void **), sa, &graph);
    printf("end %d\n", r);
    return NULL;
}
#define STEP(name, e) do { int r_ = e; printf("%s %d ", name, r_); pthread_barrier_wait(&bar); pthread_barrier_wait(&bar); } while (0)
int main(int argc, char **argv) {
    (void)argc; const char *way = argv[1];
    FILE *f = fopen(argv[4], "r"); char word[600];
    while (fscanf(f, "%599s", word) == 1) {
        if (!strcmp(word, "grid")) { if (fscanf(f, "%u %u %u %u %u", grid, grid + 1, grid + 2, &threads, &shared) != 5) return 1; }
        else if (!strcmp(word, "param")) { unsigned b; if (fscanf(f, "%2x", &b) != 1) return 1; params[pb++] = b; }
        else if (!strcmp(word, "address")) { if (fscanf(f, "%u", &ptrs[npt++]) != 1) return 1; }
    }
    fclose(f);
    int fd = open(argv[2], O_RDONLY); struct stat st; fstat(fd, &st);
    unsigned char *image = malloc(st.st_size + 4096);
    if (read(fd, image, st.st_size) != st.st_size) return 1;
    if (strstr(way, "EAGER")) setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    find = (void *)dlsym(driver, "cuGetProcAddress_v2");
    uint64_t buffer; void *lib = NULL, *kern = NULL; int mode = 2;
    CALL(cuInit, (unsigned), 0);
    CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0);
    CALL(cuCtxSetCurrent, (void *), context);
    CALL(cuMemAlloc, (uint64_t *, size_t), &buffer, 1 << 20);
    CALL(cuStreamCreate, (void **, unsigned), &sa, 1);
    CALL(cuStreamCreate, (void **, unsigned), &sb, 1);
    CALL(cuCtxSynchronize, (void));
    for (unsigned i = 0; i < npt; ++i) memcpy(params + ptrs[i], &buffer, 8);
    void *extra[] = {(void *)1, params, (void *)2, &pb, NULL};
    pthread_barrier_init(&bar, NULL, 2);
    pthread_t t; pthread_create(&t, NULL, captures, NULL);
    pthread_barrier_wait(&bar);
    if (strstr(way, "relax")) CALL(cuThreadExchangeStreamCaptureMode, (int *), &mode);
    printf("%s: ", way);
    if (strstr(way, "module")) {
        void *mod = NULL;
        STEP("load", CALL(cuModuleLoadData, (void **, const void *), &mod, image));
        STEP("get", CALL(cuModuleGetFunction, (void **, void *, const char *), &kern, mod, argv[3]));
    } else {
    STEP("load", CALL(cuLibraryLoadData, (void **, const void *, void *, void *, unsigned, void *, void *, unsigned), &lib, image, NULL, NULL, 0, NULL, NULL, 0));
    STEP("get", CALL(cuLibraryGetKernel, (void **, void *, const char *), &kern, lib, argv[3]));
    }
    if (strstr(way, "malloc")) { uint64_t b2; STEP("malloc", CALL(cuMemAlloc, (uint64_t *, size_t), &b2, 64 << 20)); }
    else STEP("launch", CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), kern, grid[0], grid[1], grid[2], threads, 1, 1, shared, sb, NULL, extra));
    STEP("sync", CALL(cuStreamSynchronize, (void *), sb));
    pthread_join(t, NULL);
    return 0;
}
