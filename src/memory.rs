//! How the C library's allocator treats large vectors.
//!
//! By default it learns: each large block that is freed raises the size from which blocks are mapped on their own, up to 32 MB. A program that makes
//! vectors of tens of megabytes, one phase after the other, then keeps the holes that they leave in the heap. Fixed thresholds took 2 to
//! 6 % of the memory of large inputs, and no time (`benches/records/2026-11-21-tool-speed.md`).

/// Sets the thresholds; to be called before the first thread is made. Other C libraries than GNU's are left as they are.
pub(crate) fn fix_thresholds() {
    #[cfg(target_env = "gnu")]
    {
        /// In bytes: what is at least as large is mapped, and unmapped when it is freed.
        const MAPPED_FROM: libc::c_int = 2 << 20;
        /// In bytes, more than there is: the heap, which has what is smaller, is kept.
        const TRIMMED_FROM: libc::c_int = 1 << 30;
        for (parameter, value) in [(libc::M_MMAP_THRESHOLD, MAPPED_FROM), (libc::M_TRIM_THRESHOLD, TRIMMED_FROM)] {
            #[expect(unsafe_code, reason = "see the measurement above")]
            // SAFETY: `mallopt` takes two numbers and changes nothing but the policy for blocks that are allocated from now on. A value that
            // it does not take leaves the default.
            unsafe {
                libc::mallopt(parameter, value);
            }
        }
    }
}

/// Makes as many heaps as threads are to work (0: as many as processors); to be called before the first thread is made. One more, the default, is the main thread's, which waits while they work:
/// what is left free in it they can't use. One heap for two threads saves a few percent of memory, and they wait for each other: a quarter of the
/// time, and as much processor time (`benches/records/2026-11-29-heaps.md`).
pub(crate) fn limit_heaps(threads: usize) {
    #[cfg(target_env = "gnu")]
    {
        let threads = if threads == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { threads };
        let heaps = libc::c_int::try_from(threads).unwrap_or(libc::c_int::MAX);
        #[expect(unsafe_code, reason = "see the measurement above")]
        // SAFETY: as in `fix_thresholds`.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, heaps);
        }
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = threads;
}

/// Gives the system back what is free in the heap, from which it is not trimmed by itself: what one phase leaves is scattered, and the next one may need other
/// sizes. The largest resident set of `relift shrink` is a tenth to a quarter smaller for it, and a phase begins with some page faults more
/// (`benches/records/2026-11-22-shrink-cost.md`).
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        #[expect(unsafe_code, reason = "see the measurement above")]
        // SAFETY: `malloc_trim` takes a number and touches only memory that is not allocated. Whether it found any makes no difference here.
        unsafe {
            libc::malloc_trim(0);
        }
    }
}
