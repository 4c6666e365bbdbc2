//! Numbers that may be addresses of functions without frame descriptions.
//!
//! **Problem.** At a fixed address, where nothing marks addresses, a number leads to code or is one by chance; and what it leads to may be data, if nothing says that it is code. Such a pair is but tried:
//! that it fails need not mean anything.
//!
//! **Rule.** In the end, an address that was found to be code of the input, or where the output does not have the same bytes up to the end of the function, has to lead to what corresponds.
//!
//! Terminates: each address is asked for once.

use crate::walk::{Pair, Reach, Walk};

impl Walk<'_, '_> {
    /// Asks for the pairs of all addresses for which a try is not enough.
    pub(crate) fn settle_guesses(&mut self) {
        let mut guessed = std::mem::take(&mut self.guessed);
        guessed.sort_unstable();
        guessed.dedup_by_key(|guess| guess.0);
        for (address, origin) in guessed {
            if self.is_known_code(address) || !self.has_same_bytes(address) {
                self.queue.push(Pair::new(address, address, origin, Reach::Pointer));
            }
        }
        self.settle();
    }

    fn is_known_code(&self, address: u64) -> bool {
        let address = self.input_leads_to(address);
        self.input.code.index(address).is_some_and(|index| self.relation.seen.contains(index))
    }

    /// Whether the function at an address is there in the output as it was.
    fn has_same_bytes(&self, address: u64) -> bool {
        let Some(function) = self.input.function_at(address) else { return true };
        let size = (self.input.function(function).1 - address) as usize;
        let bytes = self.input.image.at(address, size);
        bytes.is_some() && bytes == self.output.image.at(address, size)
    }
}
