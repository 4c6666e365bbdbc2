//! How far a long file has been read, for who waits for it.
//!
//! Readers tell a function the number of bytes behind them, now and then: at most once in [`STEP`] bytes, so that it costs nothing. What it does with that is
//! not theirs to know.

/// Is told how many bytes have been read.
pub type Watch<'a> = &'a dyn Fn(u64);

/// For who does not want to know.
pub const SILENT: Watch<'static> = &|_| {};

const STEP: u64 = 1 << 22;

/// A place in a file that goes forward.
pub(crate) struct Watched<'a> {
    watch: Watch<'a>,
    told: u64,
}

impl<'a> Watched<'a> {
    pub(crate) fn new(watch: Watch<'a>) -> Self {
        Watched { watch, told: 0 }
    }
    pub(crate) fn at(&mut self, bytes: u64) {
        if bytes >= self.told.saturating_add(STEP) {
            self.told = bytes;
            (self.watch)(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_step_is_told_once_and_in_order() {
        let told = RefCell::new(Vec::new());
        let note = |bytes| told.borrow_mut().push(bytes);
        let mut watched = Watched::new(&note);
        for kilobytes in 0..10 * 1024u64 {
            watched.at(kilobytes << 10);
        }
        assert_eq!(*told.borrow(), [STEP, 2 * STEP]);
    }
}
