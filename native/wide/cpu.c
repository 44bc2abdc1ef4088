/* Which instruction set passes run on. */
#include "localspec_wide.h"
#include "wide.h"

#include <stdlib.h>
#include <string.h>

#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__APPLE__) && defined(__aarch64__)
#include <sys/sysctl.h>
#endif

static const char *const names[] = {"", "scalar", "neon", "avx2", "avx512", "i8mm"};

int32_t lsw_abi_version(void) { return LSW_ABI_VERSION; }

const char *lsw_isa_name(void) { return names[wide_best_isa()]; }

#if defined(LSW_HAVE_NEON)
/* Whether the CPU has what WIDE_NEON (the dot product) or WIDE_I8MM adds. */
static bool arm_has(enum wide_isa isa) {
#if defined(__linux__)
    const bool dots = getauxval(AT_HWCAP) >> 20 & 1, matrices = getauxval(AT_HWCAP2) >> 13 & 1; /* ASIMDDP, I8MM */
    return isa == WIDE_I8MM ? matrices : dots;
#elif defined(__APPLE__)
    int found = 0;
    size_t size = sizeof found;
    const char *name = isa == WIDE_I8MM ? "hw.optional.arm.FEAT_I8MM" : "hw.optional.arm.FEAT_DotProd";
    return sysctlbyname(name, &found, &size, NULL, 0) == 0 && found;
#else
    (void)isa;
    return false;
#endif
}
#endif

bool wide_has_isa(enum wide_isa isa) {
    switch (isa) {
    case WIDE_SCALAR:
        return true;
#if defined(LSW_HAVE_NEON)
    case WIDE_NEON:
        return arm_has(WIDE_NEON);
#endif
#if defined(LSW_HAVE_I8MM)
    case WIDE_I8MM: /* odd rows go by dot products */
        return arm_has(WIDE_NEON) && arm_has(WIDE_I8MM);
#endif
#if defined(LSW_HAVE_AVX2)
    case WIDE_AVX2:
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#endif
#if defined(LSW_HAVE_AVX512)
    case WIDE_AVX512:
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
               && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
#endif
    default:
        return false;
    }
}

/* LOCALSPEC_WIDE_ISA forces one (for tests); a name that is unknown or not to be had here is ignored. */
static enum wide_isa choose(void) {
    const char *wish = getenv("LOCALSPEC_WIDE_ISA");
    for (int isa = WIDE_SCALAR; wish && isa <= WIDE_I8MM; isa++) {
        if (strcmp(wish, names[isa]) == 0 && wide_has_isa((enum wide_isa)isa)) {
            return (enum wide_isa)isa;
        }
    }
    int best = WIDE_I8MM;
    while (!wide_has_isa((enum wide_isa)best)) {
        best--;
    }
    return (enum wide_isa)best;
}

enum wide_isa wide_best_isa(void) {
    static int chosen; /* threads that meet here first all write the same */
    int isa = __atomic_load_n(&chosen, __ATOMIC_RELAXED);
    if (!isa) {
        isa = choose();
        __atomic_store_n(&chosen, isa, __ATOMIC_RELAXED);
    }
    return (enum wide_isa)isa;
}
