/* A thread pool that never waits for a thread that has not started. The caller begins at once. If a helper is slow, or does
 * not get its core for milliseconds, the others take over the parts that it has not taken. (OpenMP assigns shares
 * beforehand and waits for all threads; next to other programs, a sentence then takes ten times as long.)
 */
#include "kernels.h"

#if COMPILED
#include <stdatomic.h>
#endif

#if COMPILED && !defined(_WIN32)
#include <pthread.h>
#include <sched.h>
#include <signal.h>

enum {
    MOST = 64,        /* threads, including the caller */
    PATIENCE = 10000, /* polls, of some 10 to 50 ns each, before a thread sleeps or yields its core */
};

static struct {
    pthread_mutex_t asking, door; /* held by the caller during a job; guards sleep and wake-up */
    pthread_cond_t bell;
    int64_t born;       /* helpers that have been started */
    unsigned last;      /* number of the latest job */
    atomic_uint open;   /* number of the job that helpers may join, or 0 */
    atomic_int inside;  /* helpers that look at the job, which must not change until they leave */
    atomic_int asleep;  /* whether a helper may be sleeping */
    void (*work)(const void *, int64_t);
    const void *job;
    int64_t count, threads;
    uint64_t floats; /* the caller's floating-point mode */
    struct {
        _Alignas(64) atomic_long next; /* the first part of a thread's share that nobody has taken; on its own cache line */
    } shares[MOST];
} team = {.asking = PTHREAD_MUTEX_INITIALIZER, .door = PTHREAD_MUTEX_INITIALIZER, .bell = PTHREAD_COND_INITIALIZER};

/* Run the parts left in one's own share, then those left in the others'. */
static void take(int64_t own) {
    for (int64_t k = 0; k < team.threads; k++) {
        int64_t number = (own + k) % team.threads, end = team.count * (number + 1) / team.threads;
        for (int64_t part; (part = atomic_fetch_add(&team.shares[number].next, 1)) < end;) team.work(team.job, part);
    }
}

/* Wait for a job other than the last one seen: poll for a while, then sleep. */
static unsigned wait_for_job(unsigned seen) {
    for (;;) {
        for (int look = 0; look < PATIENCE; look++) {
            unsigned job = atomic_load(&team.open);
            if (job && job != seen) return job;
            relax();
        }
        pthread_mutex_lock(&team.door);
        atomic_store(&team.asleep, 1);
        unsigned job = atomic_load(&team.open); /* either it is seen here, or its caller sees `asleep` */
        if (!job || job == seen) pthread_cond_wait(&team.bell, &team.door);
        pthread_mutex_unlock(&team.door);
    }
}

static void *helper(void *number) {
    for (unsigned job = 0;;) {
        job = wait_for_job(job);
        atomic_fetch_add(&team.inside, 1);
        if (atomic_load(&team.open) == job && (int64_t)number < team.threads) {
            set_floats_mode(team.floats);
            take((int64_t)number);
        }
        atomic_fetch_sub(&team.inside, 1);
    }
    return NULL;
}

/* Reset the pool in a forked process, which has none of the threads. */
static void reset_after_fork(void) {
    pthread_mutex_init(&team.asking, NULL);
    pthread_mutex_init(&team.door, NULL);
    pthread_cond_init(&team.bell, NULL);
    team.born = 0;
    atomic_store(&team.open, 0);
    atomic_store(&team.inside, 0);
    atomic_store(&team.asleep, 0);
}

/* Start helpers until there are `wanted`, or as many as the system allows. They receive no signals. */
static void start_helpers(int64_t wanted) {
    static int asked;
    if (team.born >= wanted) return;
    if (!asked) asked = !pthread_atfork(NULL, NULL, reset_after_fork);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pthread_t thread; asked && team.born < wanted; team.born++) {
        if (pthread_create(&thread, NULL, helper, (void *)(team.born + 1))) break;
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void in_parts(void (*work)(const void *, int64_t), const void *job, int64_t count, int64_t threads) {
    if (threads < 2 || pthread_mutex_trylock(&team.asking)) { /* if another thread is calling, work alone */
        for (int64_t part = 0; part < count; part++) work(job, part);
        return;
    }
    start_helpers(threads < MOST ? threads - 1 : MOST - 1);
    team.threads = threads < team.born + 1 ? threads : team.born + 1;
    team.work = work, team.job = job, team.count = count, team.floats = floats_mode();
    for (int64_t n = 0; n < team.threads; n++) atomic_store(&team.shares[n].next, count * n / team.threads);
    if (!++team.last) team.last = 1;
    atomic_store(&team.open, team.last);
    if (atomic_load(&team.asleep)) {
        pthread_mutex_lock(&team.door);
        atomic_store(&team.asleep, 0);
        pthread_cond_broadcast(&team.bell);
        pthread_mutex_unlock(&team.door);
    }
    take(0);
    atomic_store(&team.open, 0);
    for (int look = 0; atomic_load(&team.inside); look++) {
        if (look < PATIENCE) relax();
        else sched_yield();
    }
    pthread_mutex_unlock(&team.asking);
}

#elif COMPILED

void in_parts(void (*work)(const void *, int64_t), const void *job, int64_t count, int64_t threads) {
    (void)threads;
    for (int64_t part = 0; part < count; part++) work(job, part);
}

#endif

#if COMPILED
/* GOMP_parallel of the GNU OpenMP that PyTorch loaded: runs `function(data)` on each of `threads` threads. NULL if PyTorch
 * uses another runtime. Its threads spin for a while after each operation, on the cores that ours would need. */
typedef void Parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags);
static Parallel *parallel;

EXPORT void share_threads(Parallel *of_torch) { parallel = of_torch; }

typedef struct {
    void (*work)(const void *, int64_t);
    const void *job;
    int64_t count;
    atomic_long next;
    uint64_t floats; /* as in `team` */
} Shared;

static void take_some(void *shared) {
    Shared *all = shared;
    set_floats_mode(all->floats);
    for (int64_t part; (part = atomic_fetch_add(&all->next, 1)) < all->count;) all->work(all->job, part);
}

void beside_torch(void (*work)(const void *, int64_t), const void *job, int64_t count, int64_t threads) {
    Shared all = {work, job, count, 0, floats_mode()};
    if (!parallel) in_parts(work, job, count, threads);
    else if (threads < 2 || count < 2) take_some(&all);
    else parallel(take_some, &all, (unsigned)threads, 0);
}
#endif
