"""floor.py FROM TO FORM...: a copy of runtime_c that leaves things out, to see what they take. Not to be used."""
import shutil, sys
from pathlib import Path
src, to, forms = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
shutil.rmtree(to, ignore_errors=True); shutil.copytree(src / "src", to / "src"); shutil.copytree(src / "include", to / "include")
def sub(file, old, new):
    p = to / "src" / file; s = p.read_text(); assert old in s, (file, old); p.write_text(s.replace(old, new, 1))
if "relax" in forms:
    sub("load.c", "    const CUresult result = loading->archive->driver.exchange_capture_mode(&loading->mode);\n    loading->is_relaxed = result == CUDA_SUCCESS;\n    return", "    const CUresult result = CUDA_SUCCESS;\n    return AOTC_OK;\n    return")
    sub("load.c", "*entered = (struct aotci_entered){.is_relaxed = true, .mode = loading.mode};", "")
if "context" in forms:
    sub("load.c", "driver->context_get_id(current, &id)", "CUDA_SUCCESS")
    sub("load.c", "driver->context_get_device(&device)", "CUDA_SUCCESS")
    sub("load.c", "result = driver->device_get_attribute(questions[i].value, questions[i].attribute,\n                                              context->device);", "*questions[i].value = i == 0 ? 9 : 0;")
if "index" in forms:
    sub("validate.c", "    aotc_status status = check_strings(&kernel->tables, error);\n    status = status == AOTC_OK ? check_targets", "    return AOTC_OK;\n    aotc_status status = check_strings(&kernel->tables, error);\n    status = status == AOTC_OK ? check_targets")
if "cubin" in forms:
    sub("dispatch.c", "    const char *wrong = aotci_cubin_check(image,", "    loading->kernel->has_params[aotci_variant_number(loading->kernel, variant)] = true;\n    goto load;\n    const char *wrong = aotci_cubin_check(image,")
    sub("dispatch.c", "    const CUresult result =\n        archive->driver.library_load(", "load:;\n    const CUresult result =\n        archive->driver.library_load(")
