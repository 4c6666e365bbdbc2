//! What a target may use: memory in proportion to the file, and little time.
//!
//! The allocator of every program that links this library counts what is allocated and refuses what exceeds the budget; Rust then ends the
//! process, which a fuzzer takes for a crash and a test for a failure. What the disassembler of the checker allocates in C is not
//! counted here but by the fuzzer's limit on the whole process. One run at a time, since the budget is the process's.

use std::alloc::System;
use std::panic;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use cap::Cap;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

static RUNNING: Mutex<()> = Mutex::new(());

/// Bytes that a run may take for each byte of its file, and besides.
pub const BYTES_PER_FILE_BYTE: usize = 100;
pub const BYTES_BESIDES: usize = 4 << 20;

/// Runs `work` with the memory that a file of `file_len` bytes may cost, and returns how long it took.
pub fn within(file_len: usize, work: impl FnOnce()) -> Duration {
    static HOOK: Once = Once::new();
    HOOK.call_once(lift_on_panic);
    let _running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let budget = BYTES_BESIDES + BYTES_PER_FILE_BYTE * file_len;
    let lift = Lift(ALLOCATOR.set_limit(ALLOCATOR.allocated() + budget).is_ok());
    let started = Instant::now();
    work();
    let took = started.elapsed();
    drop(lift);
    took
}

/// What a panic prints takes memory, and is not what is measured.
fn lift_on_panic() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let _raised = ALLOCATOR.set_limit(usize::MAX);
        print(info);
    }));
}

/// Takes the limit away again, after a panic too.
struct Lift(bool);

impl Drop for Lift {
    fn drop(&mut self) {
        if self.0 {
            let _raised = ALLOCATOR.set_limit(usize::MAX);
        }
    }
}

/// Bytes that are allocated now.
pub fn allocated() -> usize {
    ALLOCATOR.allocated()
}

/// The most bytes that were ever allocated at once.
pub fn peak() -> usize {
    ALLOCATOR.max_allocated()
}
