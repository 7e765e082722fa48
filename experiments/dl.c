/* dl.c: what the driver takes for a first launch, asked in other ways.
 *   dl WAY CUBIN SYMBOL LAUNCH_FILE [TIMES]
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
static void stop(const char *w, int r) { fprintf(stderr, "dl: %s: %d\n", w, r); exit(1); }
static int (*find)(const char *, void **, int, uint64_t, int *);
static void *entry(const char *n) { void *f = NULL; int q; return find(n, &f, 12040, 0, &q) ? NULL : f; }
#define CALL(name, types, ...) do { int(*f) types = (int(*) types)(uintptr_t)entry(#name); int r = f ? f(__VA_ARGS__) : 0; if (r) stop(#name, r); } while (0)
static struct { const char *n; double t; } parts[32];
static int np; static double t0;
static void begin(void) { t0 = now(); }
static void end(const char *n) { double t = now(); parts[np].n = n; parts[np++].t = t - t0; t0 = now(); }
static unsigned grid[3], threads, shared; static unsigned char params[4096]; static size_t pb; static unsigned ptrs[64], npt;
#ifdef TRACE
#include <stdarg.h>
#include <sys/syscall.h>
static struct { const char *n; double at, t; long a, b; int part; } logs[4096]; static int nl, on;
#define LOGGED(name, ret, types, args, A, B) ret name types { static ret (*real) types; if (!real) real = (ret (*) types)dlsym(RTLD_NEXT, #name); double s = now(); ret r = real args; if (on && nl < 4096) { logs[nl].n = #name; logs[nl].at = s; logs[nl].t = now() - s; logs[nl].a = (long)(A); logs[nl].b = (long)(B); logs[nl++].part = np; } return r; }
LOGGED(ioctl, int, (int fd, unsigned long q, void *p), (fd, q, p), fd, q)
LOGGED(mmap, void *, (void *p, size_t n, int pr, int fl, int fd, off_t o), (p, n, pr, fl, fd, o), n, fl)
LOGGED(munmap, int, (void *p, size_t n), (p, n), p, n)
LOGGED(madvise, int, (void *p, size_t n, int a), (p, n, a), n, a)
LOGGED(mprotect, int, (void *p, size_t n, int a), (p, n, a), n, a)
#endif
int main(int argc, char **argv) {
    const char *way = argv[1];
    int times = argc > 5 ? atoi(argv[5]) : 1;
    FILE *f = fopen(argv[4], "r"); char word[600];
    while (fscanf(f, "%599s", word) == 1) {
        if (!strcmp(word, "grid")) { if (fscanf(f, "%u %u %u %u %u", grid, grid + 1, grid + 2, &threads, &shared) != 5) stop("grid", 0); }
        else if (!strcmp(word, "param")) { unsigned b; if (fscanf(f, "%2x", &b) != 1) stop("param", 0); params[pb++] = b; }
        else if (!strcmp(word, "address")) { if (fscanf(f, "%u", &ptrs[npt++]) != 1) stop("addr", 0); }
    }
    fclose(f);
    int fd = open(argv[2], O_RDONLY); struct stat st; fstat(fd, &st);
    unsigned char *image = malloc(st.st_size + 4096);
    if (read(fd, image, st.st_size) != st.st_size) stop("read", 0);
    close(fd);
    if (strstr(way, "EAGER")) setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    if (strstr(way, "LAZY")) setenv("CUDA_MODULE_LOADING", "LAZY", 1);
    double d0 = now();
    void *driver = dlopen(getenv("LIBCUDA") ? getenv("LIBCUDA") : "libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver) stop(dlerror(), 0);
    find = (void *)dlsym(driver, "cuGetProcAddress_v2");
    void *context; uint64_t buffer, out; 
    CALL(cuInit, (unsigned), 0);
    CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, 0);
    CALL(cuCtxSetCurrent, (void *), context);
    CALL(cuMemAlloc, (uint64_t *, size_t), &buffer, 256 << 20);
    CALL(cuMemsetD8, (uint64_t, unsigned char, size_t), buffer, 0, 256 << 20);
    void *stream = NULL;
    if (strstr(way, "stream")) CALL(cuStreamCreate, (void **, unsigned), &stream, 1);
    CALL(cuCtxSynchronize, (void));
    for (unsigned i = 0; i < npt; ++i) memcpy(params + ptrs[i], &buffer, 8);
    (void)d0; (void)out;
    void *extra[] = {(void *)1, params, (void *)2, &pb, NULL};
    if (strstr(way, "pinned")) { void *h; CALL(cuMemHostAlloc, (void **, size_t, unsigned), &h, 65536, 0); memcpy(h, image, st.st_size); image = h; }
    for (int k = 0; k < times; ++k) {
        void *lib = NULL, *kern = NULL, *mod = NULL, *fn = NULL;
        int mode = 2;
        np = 0;
#ifdef TRACE
        on = 1; nl = 0;
#endif
        begin();
#ifdef TRACE
        double z0 = t0;
#endif
        if (strstr(way, "relax")) { CALL(cuThreadExchangeStreamCaptureMode, (int *), &mode); end("relax"); }
        if (strstr(way, "find9") || strstr(way, "dlsym9")) {
            static const char *names[] = {"cuCtxGetCurrent", "cuCtxGetId", "cuCtxGetDevice", "cuDeviceGetAttribute", "cuThreadExchangeStreamCaptureMode", "cuLibraryLoadData", "cuLibraryGetKernel", "cuLaunchKernelEx", "cuKernelGetFunction"};
            for (int i = 0; i < 9; ++i) { if (strstr(way, "find9")) { if (!entry(names[i])) stop(names[i], 0); } else if (!dlsym(driver, names[i])) stop(names[i], 1); }
            end("nine");
        }
        if (strstr(way, "asks")) {
            void *c; int d, v; unsigned long long id;
            CALL(cuCtxGetCurrent, (void **), &c); end("current");
            CALL(cuCtxGetId, (void *, unsigned long long *), c, &id); end("id");
            CALL(cuCtxGetDevice, (int *), &d); end("device");
            CALL(cuDeviceGetAttribute, (int *, int, int), &v, 75, d); end("major");
            CALL(cuDeviceGetAttribute, (int *, int, int), &v, 76, d); end("minor");
        }
        if (strstr(way, "module")) {
            CALL(cuModuleLoadData, (void **, const void *), &mod, image); end("load");
            CALL(cuModuleGetFunction, (void **, void *, const char *), &fn, mod, argv[3]); end("get");
            kern = fn;
        } else if (strstr(way, "fatbin")) {
            CALL(cuModuleLoadFatBinary, (void **, const void *), &mod, image); end("load");
            CALL(cuModuleGetFunction, (void **, void *, const char *), &fn, mod, argv[3]); end("get");
            kern = fn;
        } else {
            int opt = 1; void *val = (void *)1;
            CALL(cuLibraryLoadData, (void **, const void *, void *, void *, unsigned, void *, void *, unsigned), &lib, image, NULL, NULL, 0, &opt, &val, strstr(way, "preserved") != NULL);
            end("load");
            CALL(cuLibraryGetKernel, (void **, void *, const char *), &kern, lib, argv[3]); end("get");
            if (strstr(way, "getfun") || strstr(way, "funcload")) { CALL(cuKernelGetFunction, (void **, void *), &fn, kern); end("getfun"); kern = fn; }
            if (strstr(way, "getmod")) { CALL(cuLibraryGetModule, (void **, void *), &mod, lib); end("getmod"); CALL(cuModuleGetFunction, (void **, void *, const char *), &fn, mod, argv[3]); end("get2"); kern = fn; }
        }
        if (strstr(way, "funcload")) { CALL(cuFuncLoad, (void *), kern); end("funcload"); }
        if (shared > 47 << 10) { if (fn == NULL) CALL(cuKernelSetAttribute, (int, int, void *, int), 8, (int)shared, kern, 0); else CALL(cuFuncSetAttribute, (void *, int, int), fn, 8, (int)shared); end("attr"); }
        CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), kern, grid[0], grid[1], grid[2], threads, 1, 1, shared, stream, NULL, extra);
        end("launch");
        if (strstr(way, "stream")) CALL(cuStreamSynchronize, (void *), stream); else CALL(cuCtxSynchronize, (void));
        end("finish");
        if (strstr(way, "relax")) { CALL(cuThreadExchangeStreamCaptureMode, (int *), &mode); end("back"); }
        if (strstr(way, "again")) { /* a second launch of the same function */
            CALL(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **), kern, grid[0], grid[1], grid[2], threads, 1, 1, shared, stream, NULL, extra);
            end("launch2"); CALL(cuCtxSynchronize, (void)); end("finish2"); }
#ifdef TRACE
        on = 0;
        for (int i = 0; i < nl; ++i) fprintf(stderr, "  [%d %s] %s(%ld, %#lx) at %.1f took %.1f\n", k, logs[i].part < np ? parts[logs[i].part].n : "?", logs[i].n, logs[i].a, logs[i].b, (logs[i].at - z0) / 1e3, logs[i].t / 1e3);
#endif
        double sum = 0;
        printf("{");
        for (int i = 0; i < np; ++i) { printf("%s\"%s\": %.0f", i ? ", " : "", parts[i].n, parts[i].t); if (strcmp(parts[i].n, "launch2") && strcmp(parts[i].n, "finish2")) sum += parts[i].t; }
        printf(", \"sum\": %.0f}\n", sum);
        if (lib) CALL(cuLibraryUnload, (void *), lib);
        else CALL(cuModuleUnload, (void *), mod);
    }
    return 0;
}
