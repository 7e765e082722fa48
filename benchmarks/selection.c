/* selection.c: what it takes to look up the config of a launch in a tree.
 *
 *     selection WITH.aotc WITHOUT.aotc LIBCUDA
 *
 * The archives have one kernel, `steered`, over three integers, with a selection and without. Launches are chosen
 * (`aotc_select`), which keeps nothing, or launched again and again, which is kept. Printed, in nanoseconds: the
 * medians of bursts with each archive in turn, and the tree alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "aotc/aotc.h"
#include "fake_cuda.h"
#include "selection.h"

enum { BURSTS = 200, BURST = 5000, ARGS = 3, SETS = 50000 };

struct side {
    const aotc_kernel *kernel;
    double times[BURSTS];
};

static aotc_arg sets[SETS][ARGS];

static void demand(aotc_status status, const aotc_error *error) {
    if (status != AOTC_OK) {
        (void)fprintf(stderr, "selection: %s\n", error->message);
        exit(1);
    }
}

static double now_ns(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void open_side(struct side *side, const char *path, const char *driver) {
    aotc_error error = AOTC_ERROR_INIT;
    aotc_open_options options = AOTC_OPEN_OPTIONS_INIT;
    aotc_load_options load = AOTC_LOAD_OPTIONS_INIT;
    aotc_archive *archive = NULL;
    options.driver_path = driver;
    demand(aotc_open_file(path, &options, &archive, &error), &error);
    demand(aotc_load(archive, &load, &error), &error);
    demand(aotc_kernel_get(archive, "steered", &side->kernel, &error), &error);
}

/* One burst: of `used` sets of arguments, in turn. */
static double burst(const struct side *side, bool is_launched, unsigned used) {
    static unsigned next;
    aotc_error error = AOTC_ERROR_INIT;
    aotc_selection selection = {.struct_size = sizeof selection};
    aotc_launch_desc desc = AOTC_LAUNCH_DESC_INIT;
    desc.arg_count = ARGS;
    const double start = now_ns();
    for (unsigned i = 0; i < BURST; ++i) {
        desc.args = sets[next++ % used];
        demand(is_launched ? aotc_launch(side->kernel, &desc, &error)
                           : aotc_select(side->kernel, &desc, &selection, &error),
               &error);
    }
    return (now_ns() - start) / BURST;
}

static double burst_tree(const struct side *side, unsigned used) {
    static unsigned next;
    uintptr_t sum = 0;
    const double start = now_ns();
    for (unsigned i = 0; i < BURST; ++i) {
        sum += (uintptr_t)aotci_find_leaf(side->kernel, 0, sets[next++ % used]);
    }
    const double taken = (now_ns() - start) / BURST;
    return sum == 0 ? 0 : taken;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times) {
    qsort(times, BURSTS, sizeof *times, compare);
    return times[BURSTS / 2];
}

static void report(const char *what, struct side sides[2], bool is_launched, unsigned used) {
    static double tree[BURSTS];
    for (unsigned i = 0; i < BURSTS; ++i) {
        sides[0].times[i] = burst(&sides[0], is_launched, used);
        sides[1].times[i] = burst(&sides[1], is_launched, used);
        tree[i] = burst_tree(&sides[0], used);
    }
    const double with = median(sides[0].times);
    const double without = median(sides[1].times);
    (void)printf("%s: %.1f ns with a selection, %.1f without, %.1f more; the tree alone %.1f\n", what, with,
                 without, with - without, median(tree));
}

int main(int argc, char **argv) {
    static struct side sides[2];
    if (argc != 4) {
        (void)fputs("selection WITH.aotc WITHOUT.aotc LIBCUDA\n", stderr);
        return 1;
    }
    fake_cuda_set_current(fake_cuda_create_context(0));
    for (unsigned i = 0; i < 2; ++i) {
        open_side(&sides[i], argv[1 + i], argv[3]);
    }
    srand(1);
    for (unsigned i = 0; i < SETS; ++i) {
        for (unsigned k = 0; k < ARGS; ++k) {
            sets[i][k] = aotc_i32(1 + rand() % 4096);
        }
    }
    report("chosen, one set of arguments", sides, false, 1);
    report("chosen, 50,000 sets", sides, false, SETS);
    report("launched, one set", sides, true, 1);
    report("launched, 64 sets in turn", sides, true, 64);
    return 0;
}
