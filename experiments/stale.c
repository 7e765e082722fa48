/* stale.c WAY CUBIN SYMBOL LAUNCH: what the driver says of handles of contexts that are gone, and of an image that is. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
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
    if (read(fd, image, (size_t)st.st_size) != st.st_size) return 1;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    find = (void *)dlsym(driver, "cuGetProcAddress_v2");
    void *context = NULL, *other = NULL, *mod = NULL, *fn = NULL; unsigned long long id = 0; uint64_t buffer = 0; int dev = 0; int r;
    void *extra[] = {(void *)1, params, (void *)2, &pb, NULL};
    CALL(cuInit, (unsigned), 0);
    const int is_primary = strstr(way, "primary") != NULL;
    r = is_primary ? CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0) : ({ int (*g)(void **, unsigned, int) = dlsym(driver, "cuCtxCreate_v2"); g(&context, 0, dev); });
    CALL(cuCtxSetCurrent, (void *), context);
    r = CALL(cuCtxGetId, (void *, unsigned long long *), context, &id);
    printf("%s: context %p id %llu (%d); ", way, context, id, r);
    r = CALL(cuModuleLoadData, (void **, const void *), &mod, image);
    if (strstr(way, "scrub")) memset(image, 0xff, (size_t)st.st_size);
    printf("load %d get ", r);
    printf("%d; ", CALL(cuModuleGetFunction, (void **, void *, const char *), &fn, mod, argv[3]));
    CALL(cuMemAlloc, (uint64_t *, size_t), &buffer, 1 << 20);
    for (unsigned i = 0; i < npt; ++i) memcpy(params + ptrs[i], &buffer, 8);
    #define LAUNCH() CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), fn, grid[0], grid[1], grid[2], threads, 1, 1, shared, NULL, NULL, extra)
    printf("launch %d ", LAUNCH());
    printf("sync %d; ", CALL(cuCtxSynchronize, (void)));
    fflush(stdout);
    if (strstr(way, "gone")) {
        if (is_primary) { printf("reset %d; ", CALL(cuDevicePrimaryCtxReset, (int), 0)); }
        else { printf("destroy %d; ", CALL(cuCtxDestroy, (void *), context)); }
        fflush(stdout);
        if (strstr(way, "new")) { if (is_primary) { r = CALL(cuDevicePrimaryCtxRetain, (void **, int), &other, 0); } else { int (*g)(void **, unsigned, int) = dlsym(driver, "cuCtxCreate_v2"); r = g(&other, 0, dev); } printf("new %d %p; ", r, other); CALL(cuCtxSetCurrent, (void *), other); }
        fflush(stdout);
        id = 0; r = CALL(cuCtxGetId, (void *, unsigned long long *), context, &id); printf("id of old %d %llu; ", r, id); fflush(stdout);
        if (strstr(way, "push")) { printf("push %d; ", CALL(cuCtxPushCurrent, (void *), context)); fflush(stdout); }
        if (strstr(way, "launch")) { printf("launch old %d; ", LAUNCH()); fflush(stdout); printf("sync %d; ", CALL(cuCtxSynchronize, (void))); fflush(stdout); }
        if (strstr(way, "unload")) { printf("unload old %d; ", CALL(cuModuleUnload, (void *), mod)); fflush(stdout); }
    }
    printf("\n");
    return 0;
}
