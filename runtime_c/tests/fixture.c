#include "fixture.h"

#include <string.h>

struct fixture set_up(const char *name) {
    struct fixture fixture = {.blobs = read_blobs(name), .error = AOTC_ERROR_INIT};
    const aotc_open_options options = fake_options(fixture.blobs);
    EXPECT(aotc_open_file(golden_path(name), &options, &fixture.archive, &fixture.error), AOTC_OK,
           &fixture.error, NULL);
    fixture.context = fake_cuda_create_context(0);
    fixture.stream = fake_cuda_create_stream(fixture.context);
    fake_cuda_set_current(fixture.context);
    return fixture;
}

struct fixture load(const char *name) {
    fake_cuda_reset();
    struct fixture fixture = set_up(name);
    EXPECT(aotc_load(fixture.archive, NULL, &fixture.error), AOTC_OK, &fixture.error, NULL);
    return fixture;
}

void tear_down(struct fixture *fixture) {
    aotc_release(fixture->archive);
    free_blobs(fixture->blobs);
    CHECK(fake_cuda_live_libraries() == 0);
    CHECK(fake_cuda_retained_contexts() == 0);
    NO_VIOLATION();
}

const aotc_kernel *kernel_of(const struct fixture *fixture, const char *name) {
    const aotc_kernel *kernel = NULL;
    CHECK(aotc_kernel_get(fixture->archive, name, &kernel, NULL) == AOTC_OK);
    return kernel;
}

uint32_t read_u32(const unsigned char *bytes) {
    uint32_t value = 0;
    memcpy(&value, bytes, sizeof value);
    return value;
}

uint64_t read_u64(const unsigned char *bytes) {
    uint64_t value = 0;
    memcpy(&value, bytes, sizeof value);
    return value;
}

void add_call(struct add *add, const struct fixture *fixture, aotc_dtype dtype, int32_t n) {
    add->args[0] = aotc_pointer(ADDRESS(0x1000), dtype);
    add->args[1] = aotc_pointer(ADDRESS(0x2004), dtype);
    add->args[2] = aotc_pointer(ADDRESS(0x3000), dtype);
    add->args[3] = aotc_i32(n);
    add->desc = (aotc_launch_desc)AOTC_LAUNCH_DESC_INIT;
    add->desc.args = add->args;
    add->desc.arg_count = 4;
    add->desc.stream = fixture->stream;
}
