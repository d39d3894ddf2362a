/* A program that computes in parallel regions of OpenMP, and lets calls of tqkv share its threads.
 *
 *     cc -fopenmp openmp.c $(pkg-config --cflags --libs tqkv) && ./a.out
 *
 * Prints the threads that a call shares its work among, and those of the process (Linux). */
#include <dirent.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tqkv.h>

enum { HEADS = 8, DIM = 64, TOKENS = 4096, VALUES = HEADS * DIM };

static void must(tqkv_status status, const char *what) {
    if (status != TQKV_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, tqkv_status_name(status), tqkv_last_error());
        exit(1);
    }
}

/* Threads of this process, by the system's own list. */
static int threads_of_process(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (tasks == NULL) return 0;
    for (struct dirent *task = readdir(tasks); task != NULL; task = readdir(tasks)) count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

int main(void) {
    static float keys[TOKENS * VALUES], out[VALUES], again[VALUES];
    size_t threads = 0;

    /* One thread for the pool, which is not used from the second call on. */
    must(tqkv_set_threads(1), "tqkv_set_threads");
    if (tqkv_follow_openmp("no-such-library") != TQKV_UNSUPPORTED) return 1;
    printf("refused: %s\n", tqkv_last_error());

    tqkv_cache *cache = NULL;
    must(tqkv_create("layers=1 heads=8 kv-heads=8 head-dim=64 s4", &cache), "tqkv_create");
    for (size_t i = 0; i < TOKENS * VALUES; i++) keys[i] = (float)(i * 2654435761u % 1000) / 500.0f - 1.0f;
    must(tqkv_append(cache, 0, TQKV_F32, keys, TOKENS * VALUES, keys, TOKENS * VALUES), "tqkv_append");
    must(tqkv_attend(cache, 0, TQKV_F32, keys, VALUES, TQKV_F32, out, VALUES), "tqkv_attend");
    must(tqkv_threads(&threads), "tqkv_threads");
    printf("a pool: %zu of %d threads\n", threads, threads_of_process());

    /* The program itself is linked with OpenMP, so it needs no name. */
    must(tqkv_follow_openmp(NULL), "tqkv_follow_openmp");
    omp_set_num_threads(3);
    must(tqkv_attend(cache, 0, TQKV_F32, keys, VALUES, TQKV_F32, again, VALUES), "tqkv_attend");
    must(tqkv_threads(&threads), "tqkv_threads");
    printf("OpenMP: %zu of %d threads\n", threads, threads_of_process());

    /* A call in a parallel region has the thread that makes it. */
    int equal = memcmp(out, again, sizeof out) == 0;
#pragma omp parallel reduction(&& : equal)
    {
        float own[VALUES];
        tqkv_status status = tqkv_attend(cache, 0, TQKV_F32, keys, VALUES, TQKV_F32, own, VALUES);
        equal = equal && status == TQKV_OK && memcmp(out, own, sizeof own) == 0;
    }
    printf("results are %s\n", equal ? "equal" : "NOT equal");
    tqkv_free(cache);
    return !equal;
}
